#include "cli/worker_flags.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "engine/llama/system_cores.h"

namespace meshnet::cli {
namespace {

constexpr const char* kSessions = "MESHNET_HOT_KV_MAX_SESSIONS";
constexpr const char* kContext = "MESHNET_HOT_KV_CONTEXT_TOKENS";
constexpr const char* kBudget = "MESHNET_HOT_KV_BUDGET_TOKENS";
constexpr const char* kTtl = "MESHNET_HOT_KV_TTL_SECONDS";
constexpr uint64_t kBudgetMost = 16777216;

}  // namespace

Result<EngineSettings> WorkerSettings::Resolved(LayerRange range, uint32_t layer_count) const {
  return ResolveSettings(engine, range.end == layer_count ? OutputRows::kFew : OutputRows::kAll, PhysicalCores());
}

std::vector<std::string> WorkerSettings::ToArguments() const {
  std::vector<std::string> arguments = {
      "--threads", std::to_string(engine.threads), "--ubatch-size", std::to_string(engine.ubatch_tokens),
      "--flash-attn", engine.flash_attention ? "on" : "off", "--numerics", Name(engine.numerics),
      "--gpu-layers", std::to_string(engine.gpu_layers),
      "--hot-kv-context-tokens", std::to_string(hot_kv.context_tokens), "--hot-kv-max-sessions", std::to_string(hot_kv.sessions_max),
      "--hot-kv-budget-tokens", std::to_string(hot_kv.budget_tokens), "--hot-kv-ttl-seconds", std::to_string(hot_kv.ttl_seconds)};
  auto add = [&arguments](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {flag, value});
  };
  add("--cache-type-k", engine.kv_type_k);
  add("--cache-type-v", engine.kv_type_v);
  add("--device", engine.device);
  return arguments;
}

void WorkerFlags::AddTo(Arguments& arguments) {
  arguments.Number("-t,--threads", &threads_, 0, 512, "threads of the engine; 0: all physical cores this process may use");
  arguments.Choice("--numerics", &numerics_, {"fast", "exact"},
                   "fast: bit-equal at equal step shapes; exact: results do not depend on threads, chunks, neighbours or replay");
  arguments.Text("-c,--hot-kv-context-tokens", &context_, "context of one session (default 4096, or the model's if smaller)");
  arguments.Text("--hot-kv-max-sessions", &sessions_, "sessions that hold KV at once");
  arguments.Text("--hot-kv-budget-tokens", &budget_, "sum of all reservations in tokens");
  arguments.Text("--hot-kv-ttl-seconds", &ttl_, "an idle session expires after this");
  arguments.Text("--cache-type-k", &kv_type_k_, "-ctk: type of the K cache (f16; bf16 in exact)");
  arguments.Text("--cache-type-v", &kv_type_v_, "-ctv: type of the V cache");
  arguments.Choice("--flash-attn", &flash_attention_, {"on", "off"}, "-fa: flash attention");
  arguments.Number("--ubatch-size", &ubatch_, 1, kChunkRowsMax, "-ub: rows of one engine call: tokens of a prompt's chunk, or sessions");
  arguments.Signed("--gpu-layers", &gpu_layers_, "-ngl: layers to offload");
  arguments.Text("--device", &device_, "devices to offload to, comma separated");
}

// Flags and environment were layered by Arguments already; the flags carry the variables' names, and the checks are ReadHotKvSettings' own.
Result<HotKvSettings> WorkerFlags::ResolveHotKv(const Arguments& arguments, const WorkerDefaults& defaults, uint32_t training_context) const {
  uint32_t context = training_context == 0 ? defaults.context_tokens : std::min(defaults.context_tokens, training_context);
  auto chosen = [&arguments](const char* flag, const std::string& given, uint64_t fallback) {
    return arguments.given(flag) ? given : std::to_string(fallback);
  };
  std::map<std::string, std::string> values = {{kSessions, chosen("--hot-kv-max-sessions", sessions_, defaults.sessions_max)},
                                               {kContext, chosen("--hot-kv-context-tokens", context_, context)},
                                               {kTtl, chosen("--hot-kv-ttl-seconds", ttl_, HotKvSettings().ttl_seconds)}};
  // What nobody set and no verb needs stays absent, so that a refusal blames what was set.
  auto get = [&values](const char* name) -> const char* {
    auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
  uint64_t budget = defaults.budget_tokens;
  if (budget == 0) {
    values[kBudget] = std::to_string(kBudgetMost);
    Result<HotKvSettings> probe = ReadHotKvSettings(get);
    if (!probe.ok()) return probe.status();
    budget = std::min<uint64_t>(kBudgetMost, uint64_t{probe->sessions_max} * probe->context_tokens);
  }
  values.erase(kBudget);
  if (arguments.given("--hot-kv-budget-tokens") || budget != HotKvSettings().budget_tokens) {
    values[kBudget] = chosen("--hot-kv-budget-tokens", budget_, budget);
  }
  return ReadHotKvSettings(get);
}

Result<WorkerSettings> WorkerFlags::Resolve(const Arguments& arguments, const WorkerDefaults& defaults, uint32_t training_context) const {
  Result<HotKvSettings> hot_kv = ResolveHotKv(arguments, defaults, training_context);
  if (!hot_kv.ok()) return hot_kv.status();
  WorkerSettings settings;
  settings.hot_kv = *hot_kv;
  settings.engine.threads = threads_;
  settings.engine.ubatch_tokens = ubatch_;
  settings.engine.kv_type_k = kv_type_k_;
  settings.engine.kv_type_v = kv_type_v_;
  settings.engine.flash_attention = flash_attention_ != "off";
  settings.engine.gpu_layers = gpu_layers_;
  settings.engine.device = device_;
  settings.engine.numerics = numerics_.empty() ? defaults.numerics : numerics_ == "exact" ? NumericsMode::kExact : NumericsMode::kFast;
  settings.engine.sessions_max = hot_kv->sessions_max;
  settings.engine.context_tokens = hot_kv->context_tokens;
  settings.engine.budget_tokens = hot_kv->budget_tokens;
  return settings;
}

}  // namespace meshnet::cli
