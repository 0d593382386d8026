#include "engine/llama/engine_settings.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace meshnet {
namespace {

constexpr uint32_t kContextMax = 1u << 24;
constexpr uint32_t kThreadsMax = 512;  // GGML_MAX_N_THREADS: more aborts
constexpr uint32_t kCellsStep = 256;   // llama.cpp rounds a context up to this

uint32_t PaddedCells(uint32_t tokens) { return (tokens + kCellsStep - 1) / kCellsStep * kCellsStep; }

// llama-server's list for -ctk and -ctv.
constexpr std::array<std::string_view, 9> kKvTypes = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"};

bool IsQuantised(std::string_view type) { return type != "f32" && type != "f16" && type != "bf16"; }

Status CheckRange(const char* flag, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return OkStatus();
  return BadConfiguration(std::string(flag) + " is " + std::to_string(value) + "; it must lie between " + std::to_string(least) + " and " +
                          std::to_string(most));
}

Status CheckKvType(const char* flag, const std::string& type, const EngineOptions& options) {
  if (std::find(kKvTypes.begin(), kKvTypes.end(), type) == kKvTypes.end()) {
    return BadConfiguration(std::string(flag) + " " + type + " is not a KV type: use f16, bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
  }
  if (options.numerics == NumericsMode::kExact && type != "bf16" && type != "q8_0") {
    return Refused(std::string("numerics mode exact is proved for KV in bf16 and q8_0, not for ") + flag + " " + type);
  }
  return OkStatus();
}

Status CheckNumbers(const EngineOptions& options) {
  for (const Status& status : {
           CheckRange("the number of sessions", options.sessions_max, 1, kSessionsMax),
           CheckRange("-c (context tokens)", options.context_tokens, 1, kContextMax),
           CheckRange("the token budget", options.budget_tokens, 1, kContextMax * 4ull),
           CheckRange("-ub", options.ubatch_tokens, 1, kChunkRowsMax),
           CheckRange("-t", options.threads, 0, kThreadsMax),
       }) {
    if (!status.ok()) return status;
  }
  if (options.context_tokens > options.budget_tokens) {
    return BadConfiguration("-c is " + std::to_string(options.context_tokens) + ", more than the budget of " +
                            std::to_string(options.budget_tokens) + " tokens that all sessions share");
  }
  return OkStatus();
}

}  // namespace

Result<EngineSettings> ResolveSettings(const EngineOptions& options, OutputRows output, uint32_t physical_cores) {
  if (const Status status = CheckNumbers(options); !status.ok()) return status;
  const bool exact = options.numerics == NumericsMode::kExact;
  const std::string kv_default = exact ? "bf16" : "f16";

  EngineSettings settings;
  settings.numerics = options.numerics;
  settings.kv_type_k = options.kv_type_k.empty() ? kv_default : options.kv_type_k;
  settings.kv_type_v = options.kv_type_v.empty() ? kv_default : options.kv_type_v;
  if (const Status status = CheckKvType("-ctk", settings.kv_type_k, options); !status.ok()) return status;
  if (const Status status = CheckKvType("-ctv", settings.kv_type_v, options); !status.ok()) return status;
  settings.flash_attention = options.flash_attention;
  if (exact && !options.flash_attention) return Refused("numerics mode exact is proved with flash attention on, not with -fa off");
  if (exact && options.ubatch_tokens > kExactUbatchRows) {
    return Refused("numerics mode exact is proved with -ub up to " + std::to_string(kExactUbatchRows) + ", not with -ub " + std::to_string(options.ubatch_tokens));
  }
  if (exact && options.gpu_layers != 0) return Refused("numerics mode exact is proved on the CPU only: use -ngl 0");
  if (!options.flash_attention && IsQuantised(settings.kv_type_v)) {
    return BadConfiguration("-ctv " + settings.kv_type_v + " needs flash attention: use -fa on");
  }
  settings.repack = !exact;
  settings.threads = options.threads == 0 ? std::clamp<uint32_t>(physical_cores, 1, kThreadsMax) : options.threads;

  settings.sessions = options.sessions_max;
  // Partitioned cells isolate a session from the length of its neighbours; a pool lends what others leave free, in an order that moves last bits.
  settings.partitioned = exact || uint64_t{options.sessions_max} * options.context_tokens <= options.budget_tokens;
  settings.cells = settings.partitioned ? options.sessions_max * PaddedCells(options.context_tokens) : PaddedCells(options.budget_tokens);
  settings.chunk_rows = std::min(options.ubatch_tokens, options.context_tokens);
  settings.ubatch_rows = exact ? kExactUbatchRows : settings.chunk_rows;
  settings.batch_tokens = std::max(settings.ubatch_rows, options.sessions_max);
  settings.output_rows = output == OutputRows::kFew ? std::min(settings.batch_tokens, std::max(options.sessions_max, kLogitRowsMax)) : settings.batch_tokens;
  settings.gpu_layers = options.gpu_layers;
  settings.device = options.device;
  return settings;
}

plan::KvSettings KvSettingsOf(const EngineSettings& settings) {
  plan::KvSettings kv;
  kv.sessions = settings.sessions;
  kv.context_tokens = settings.partitioned ? settings.cells / settings.sessions : settings.cells;
  kv.budget_tokens = settings.cells;
  kv.ubatch_tokens = settings.ubatch_rows;
  kv.type_k = settings.kv_type_k;
  kv.type_v = settings.kv_type_v;
  return kv;
}

}  // namespace meshnet
