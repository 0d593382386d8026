#include <algorithm>
#include <fstream>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/system_clock.h"
#include "cli/arguments.h"
#include "cli/embedded_cluster.h"
#include "cli/logit_proof.h"
#include "cli/report.h"
#include "cli/split_flags.h"
#include "cli/system_memory.h"
#include "cli/system_signals.h"
#include "cli/test_prompts.h"
#include "cli/verbs.h"
#include "engine/llama/engine_settings.h"
#include "text/llama/llama_text_model.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

constexpr Duration kAskTimeout = std::chrono::seconds(5);

struct VerifyWish {
  std::string model_path, reference_path, prompt, prompt_file;
  SplitWish split;
  uint32_t steps = 32, sessions = 0;
  bool json = false;
};

// What was proved, and on what.
struct Verdict {
  std::vector<SessionProof> sessions;
  std::vector<Stage> stages;
  std::vector<ProcessMemory> memory;
  uint64_t engine_calls = 0, steps_committed = 0;  // of the tail

  bool tokens_equal() const {
    return std::all_of(sessions.begin(), sessions.end(), [](const SessionProof& proof) { return proof.tokens_equal; });
  }
  double max_abs_logit_diff() const {
    double largest = 0;
    for (const SessionProof& proof : sessions) largest = std::max(largest, proof.max_abs_logit_diff);
    return largest;
  }
  bool equal() const { return tokens_equal() && max_abs_logit_diff() == 0; }
};

Result<std::string> PromptText(const VerifyWish& wish) {
  if (wish.prompt_file.empty()) return wish.prompt;
  std::ifstream file(wish.prompt_file, std::ios::binary);
  if (!file) return BadConfiguration("--prompt-file " + wish.prompt_file + " cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Result<ProofPlan> MakePlan(const VerifyWish& wish, const OpenedModel& model) {
  Result<std::string> text = PromptText(wish);
  if (!text.ok()) return text.status();
  Result<std::unique_ptr<TextModel>> text_model = CreateLlamaTextModel({model.file.path(), ""});
  ProofPlan plan;
  plan.steps = wish.steps;
  bool has_text = text_model.ok() && (*text_model)->has_tokenizer();
  if (!has_text && !text->empty()) return BadConfiguration(wish.model_path + " has no tokenizer, so it takes no --prompt");
  for (uint32_t i = 0; i < std::max(1u, wish.sessions); ++i) {
    if (has_text) {
      plan.prompts.push_back((*text_model)->TokenizeText(TestPrompt(*text, i)));
    } else {
      plan.prompts.push_back(TestTokens(40 + 7 * i, i, model.shape.vocabulary_size));
    }
    if (plan.prompts.back().empty()) return BadConfiguration("the prompt has no tokens");
  }
  return plan;
}

uint32_t ContextFor(const ProofPlan& plan) {
  size_t longest = 0;
  for (const std::vector<Token>& prompt : plan.prompts) longest = std::max(longest, prompt.size());
  return static_cast<uint32_t>((longest + plan.steps + 255) / 256 * 256);
}

// The tail's engine calls and steps: fewer calls than steps means that sessions met in one call.
void AddCalls(EmbeddedCluster& cluster, const Clock& clock, Verdict* verdict) {
  std::shared_ptr<const Route::View> view = cluster.route().view();
  if (!view) return;
  auto answer = std::make_shared<std::promise<Reply<ShardStats>>>();
  std::future<Reply<ShardStats>> reply = answer->get_future();
  view->stages.back().link->Stats(clock.Now() + kAskTimeout, [answer](Reply<ShardStats> stats) { answer->set_value(std::move(stats)); });
  Reply<ShardStats> stats = reply.get();
  if (const ShardStats* found = std::get_if<ShardStats>(&stats)) {
    verdict->engine_calls = found->engine_calls;
    verdict->steps_committed = found->steps_committed;
  }
}

ordered_json ToJson(const Verdict& verdict, const OpenedModel& model, const ClusterPlan& plan) {
  ordered_json cuts = ordered_json::array(), sessions = ordered_json::array(), workers = ordered_json::array();
  for (size_t i = 1; i < plan.ranges.size(); ++i) cuts.push_back(plan.ranges[i].begin);
  for (const SessionProof& proof : verdict.sessions) {
    sessions.push_back({{"prompt_tokens", proof.prompt_tokens}, {"steps", proof.steps}, {"tokens_equal", proof.tokens_equal},
                        {"max_abs_logit_diff", proof.max_abs_logit_diff}});
  }
  for (size_t i = 0; i < verdict.stages.size(); ++i) {
    const ShardDescription& worker = verdict.stages[i].description;
    workers.push_back({{"pid", worker.process_id}, {"layers", {worker.range.begin, worker.range.end}}, {"weight_bytes", worker.weight_bytes},
                       {"kv_bytes_per_token", worker.kv_bytes_per_token}, {"kv_bytes_predicted", plan.needs[i].kv_bytes},
                       {"kv_bytes_allocated", worker.kv_bytes_allocated}, {"rss_bytes", verdict.memory[i].resident_bytes}});
  }
  return {{"model", model.shape.name}, {"architecture", model.shape.architecture}, {"layers", model.shape.layer_count}, {"cuts", cuts},
          {"tokens_equal", verdict.tokens_equal()}, {"max_abs_logit_diff", verdict.max_abs_logit_diff()}, {"sessions", sessions}, {"workers", workers}};
}

std::string ToText(const Verdict& verdict, const OpenedModel& model, const ClusterPlan& plan) {
  std::string text = model.shape.name + " (" + model.shape.architecture + ", " + std::to_string(model.shape.layer_count) + " layers) through " +
                     std::to_string(plan.ranges.size()) + " worker processes, numerics " + Name(plan.settings.engine.numerics) + "\n\n";
  TextTable workers({"layers", "pid", "weights", "KV a token", "KV predicted", "KV allocated", "resident", "of it mapped"});
  for (size_t i = 0; i < verdict.stages.size(); ++i) {
    const ShardDescription& worker = verdict.stages[i].description;
    workers.Add({worker.range.Text(), std::to_string(worker.process_id), HumanBytes(worker.weight_bytes), HumanBytes(worker.kv_bytes_per_token),
                 HumanBytes(plan.needs[i].kv_bytes), HumanBytes(worker.kv_bytes_allocated), HumanBytes(verdict.memory[i].resident_bytes),
                 HumanBytes(verdict.memory[i].resident_file_bytes)});
  }
  TextTable sessions({"session", "prompt tokens", "steps", "tokens", "max logit difference"});
  uint64_t rows = 0;
  for (size_t i = 0; i < verdict.sessions.size(); ++i) {
    const SessionProof& proof = verdict.sessions[i];
    rows += proof.prompt_tokens + proof.steps;
    sessions.Add({std::to_string(i + 1), std::to_string(proof.prompt_tokens), std::to_string(proof.steps), proof.tokens_equal ? "equal" : "DIFFERENT",
                  ordered_json(proof.max_abs_logit_diff).dump() + (proof.first_difference.empty() ? "" : " from the " + proof.first_difference)});
  }
  text += workers.Format() + "\n" + sessions.Format() + "\n";
  if (verdict.sessions.size() > 1 && verdict.engine_calls > 0) {
    text += std::to_string(verdict.steps_committed) + " steps of all sessions took the tail " + std::to_string(verdict.engine_calls) + " engine calls\n";
  }
  return text + (verdict.equal() ? "EQUAL: " : "DIFFERENT: ") + std::to_string(rows) + " rows of " + std::to_string(model.shape.vocabulary_size) +
         " logits against one llama.cpp context\n";
}

Result<Verdict> Prove(const VerifyWish& wish, const OpenedModel& model, const ClusterPlan& cluster_plan, ProofPlan plan, EmbeddedCluster& cluster,
                      Signals& signals, const Clock& clock) {
  bool stopped = false;
  StopProbe stop = [&signals] { return signals.Wait(Duration(0)).has_value(); };
  Result<std::unique_ptr<ReferenceContext>> reference =
      CreateReferenceContext(wish.reference_path.empty() ? model.file.path() : wish.reference_path, cluster_plan.settings.engine);
  if (!reference.ok()) return reference.status();
  Status ready = cluster.WaitReady([&stop, &stopped] { return stopped = stop(); });
  if (!ready.ok()) return ready;
  std::shared_ptr<const Route::View> view = cluster.route().view();
  if (!view) return PeerUnreachable(cluster.route().trouble());
  plan.chunk_rows = std::min(view->limits.chunk_rows_max, kLogitRowsMax);  // every row's logits are compared
  Verdict verdict;
  verdict.stages = view->stages;
  ProgressLine progress("verifying " + model.shape.name + ":");
  auto prove = wish.sessions > 1 ? ProveTogether : ProveAlone;
  Result<std::vector<SessionProof>> sessions =
      prove(plan, cluster.route(), clock, **reference, stop, [&progress](const std::string& text) { progress.UpdateText(text); });
  if (!sessions.ok()) return sessions.status();
  verdict.sessions = std::move(*sessions);
  for (const Stage& stage : verdict.stages) verdict.memory.push_back(MemoryOfProcess(static_cast<int>(stage.description.process_id)));
  AddCalls(cluster, clock, &verdict);
  return verdict;
}

int VerifyModel(const VerifyWish& wish, const WorkerFlags& flags, const Arguments& arguments) {
  Result<OpenedModel> model = OpenWholeModel(wish.model_path);
  if (!model.ok()) return Report(model.status());
  Result<ProofPlan> plan = MakePlan(wish, *model);
  if (!plan.ok()) return Report(plan.status());
  // Logits depend on the shapes of steps, and sessions that meet in one call change them: only `exact` promises equality then.
  WorkerDefaults defaults{std::max(1u, wish.sessions), ContextFor(*plan), 0, wish.sessions > 0 ? NumericsMode::kExact : NumericsMode::kFast};
  Result<WorkerSettings> settings = flags.Resolve(arguments, defaults, 0);
  if (!settings.ok()) return Report(settings.status());
  if (ContextFor(*plan) > (settings->hot_kv.context_tokens + 255) / 256 * 256) {
    return Report(BadConfiguration("prompt and steps need a context of " + std::to_string(ContextFor(*plan)) + " tokens, -c allows " +
                                   std::to_string(settings->hot_kv.context_tokens)));
  }
  // The reference loads the whole model once more in this process, and keeps its logits when sessions are compared afterwards.
  uint64_t resident = model->shape.weight_bytes + (wish.sessions > 1 ? ReferenceBytes(*plan, model->shape.vocabulary_size) : 0);
  Result<ClusterPlan> cluster_plan = PlanCluster(*model, wish.split, *settings, resident);
  if (!cluster_plan.ok()) return Report(cluster_plan.status());
  Result<ShardFiles> files = EnsureShardFiles(*model, cluster_plan->ranges);
  if (!files.ok()) return Report(files.status());

  Signals signals;
  SystemClock clock;
  Result<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Launch(*cluster_plan, std::move(*files), SupervisorOptions(), clock);
  if (!cluster.ok()) return Report(cluster.status());
  Result<Verdict> verdict = Prove(wish, *model, *cluster_plan, std::move(*plan), **cluster, signals, clock);
  if (!verdict.ok()) return Report(verdict.status());
  Print(wish.json ? ToJson(*verdict, *model, *cluster_plan).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                  : ToText(*verdict, *model, *cluster_plan));
  return verdict->equal() ? 0 : static_cast<int>(StatusCode::kFailure);
}

}  // namespace

int Verify(int argc, char** argv) {
  VerifyWish wish;
  WorkerFlags flags;
  SplitFlags split_flags;
  Arguments arguments("verify", "Proof of split: the same chunks through worker processes and through one plain llama.cpp context, every logit compared.");
  arguments.Positional("MODEL", &wish.model_path, "a GGUF, or any part of a split one");
  split_flags.AddTo(arguments);
  arguments.LocalText("--prompt", &wish.prompt, "text to start from (default: a built-in one)");
  arguments.LocalText("--prompt-file", &wish.prompt_file, "the same from a file");
  arguments.Number("--steps", &wish.steps, 0, 1000000, "tokens to generate after the prompt");
  arguments.Number("--sessions", &wish.sessions, 1, 256, "this many different prompts at once, each compared with itself alone; numerics exact unless told otherwise");
  arguments.LocalText("--reference", &wish.reference_path, "compare with this file instead of MODEL: how far a quantisation is off");
  arguments.Switch("--json", &wish.json, "one JSON object on stdout");
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (std::optional<int> code = split_flags.Resolve(arguments, &wish.split)) return *code;
  if (!wish.prompt.empty() && !wish.prompt_file.empty()) return arguments.Usage("one of --prompt and --prompt-file");
  return VerifyModel(wish, flags, arguments);
}

}  // namespace meshnet::cli
