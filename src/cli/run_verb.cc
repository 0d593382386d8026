#include "base/system_clock.h"
#include "cli/arguments.h"
#include "cli/conversation.h"
#include "cli/embedded_cluster.h"
#include "cli/report.h"
#include "cli/split_flags.h"
#include "cli/verbs.h"
#include "session/session_driver.h"
#include "text/llama/llama_text_model.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

constexpr Duration kReleaseTimeout = std::chrono::seconds(1);
// Of the reply kept in a session for the next question; a prompt of a chat grows, so one session is all that a person needs.
constexpr uint32_t kSessions = 1;

// Hands the tokens of one answer to its writer, and the writer's text to the person.
class PieceSink : public AnswerSink {
 public:
  PieceSink(AnswerWriter& writer, const std::function<void(const AnswerPiece&)>& on_piece, const std::function<bool()>& cancelled)
      : writer_(writer), on_piece_(on_piece), cancelled_(cancelled) {}

  SinkVerdict OnToken(const SampledToken& token) override {
    AnswerWriter::Fed fed = writer_.Feed(token);
    Emit(fed.events);
    return fed.stopped ? SinkVerdict::kStop : SinkVerdict::kGoOn;
  }
  bool Cancelled() override { return cancelled_(); }

  void Emit(const std::vector<ordered_json>& events) {
    for (const ordered_json& event : events) on_piece_(PieceOf(event));
  }

 private:
  AnswerWriter& writer_;
  const std::function<void(const AnswerPiece&)>& on_piece_;
  const std::function<bool()>& cancelled_;
};

// Answers from our own workers, without HTTP between.
class RouteBackend : public ChatBackend {
 public:
  RouteBackend(EmbeddedCluster& cluster, const TextModel& text, uint32_t context_tokens, const Clock& clock)
      : cluster_(cluster), text_(text), context_tokens_(context_tokens), session_(cluster.route(), clock, DriverOptions(), "run") {}
  ~RouteBackend() override { session_.Release(kReleaseTimeout); }

  Status Answer(const ordered_json& body, const std::function<void(const AnswerPiece&)>& on_piece,
                const std::function<bool()>& person_cancelled) override {
    // Once a worker died too often, waiting for the route is waiting for nothing.
    std::function<bool()> cancelled = [this, &person_cancelled] { return person_cancelled() || cluster_.supervisor().failure().has_value(); };
    std::string text = body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    std::variant<std::unique_ptr<ParsedRequest>, ApiError> parsed = text_.Parse(ApiKind::kChat, text, context_tokens_);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Failure(error->message);
    const ParsedRequest& request = *std::get<std::unique_ptr<ParsedRequest>>(parsed);
    std::unique_ptr<AnswerWriter> writer = request.NewWriter(0);
    PieceSink sink(*writer, on_piece, cancelled);
    sink.Emit(writer->Begin());
    AnswerRequest answer{request.choices.front().prompt, request.choices.front().sampling, request.tokens_max};
    std::variant<AnswerReport, AnswerFailure> outcome = session_.Answer(answer, sink);
    const AnswerReport* report = std::get_if<AnswerReport>(&outcome);
    sink.Emit(writer->End(report != nullptr && report->end == AnswerEnd::kLength));
    if (std::optional<Status> failure = cluster_.supervisor().failure()) return *failure;
    if (report != nullptr) return OkStatus();
    const AnswerFailure& failure = std::get<AnswerFailure>(outcome);
    return failure.kind == AnswerFailure::Kind::kRouteDown ? PeerUnreachable(failure.message) : Failure(failure.message);
  }

 private:
  EmbeddedCluster& cluster_;
  const TextModel& text_;
  uint32_t context_tokens_;
  DrivenSession session_;
};

int ConverseWith(EmbeddedCluster& cluster, const TextModel& text, const ClusterPlan& plan, const ChatFlags& flags, const Arguments& arguments,
                 Signals& signals, const Clock& clock) {
  Status ready = cluster.WaitReady([&signals] { return signals.Wait(Duration(0)).has_value(); });
  if (!ready.ok()) return Report(ready);
  RouteBackend backend(cluster, text, plan.settings.hot_kv.context_tokens, clock);
  return Converse(backend, flags, arguments, signals);
}

int RunModel(const std::string& model_path, const SplitWish& split, const WorkerFlags& worker_flags, const ChatFlags& flags, const Arguments& arguments) {
  WorkerDefaults defaults;
  defaults.sessions_max = kSessions;
  defaults.budget_tokens = 0;
  Result<WorkerSettings> settings = worker_flags.Resolve(arguments, defaults, 0);
  if (!settings.ok()) return Report(settings.status());
  Result<OpenedModel> model = OpenWholeModel(model_path);
  if (!model.ok()) return Report(model.status());
  settings = worker_flags.Resolve(arguments, defaults, model->shape.context_length);
  if (!settings.ok()) return Report(settings.status());
  Result<ClusterPlan> plan = PlanCluster(*model, split, *settings, 0);
  if (!plan.ok()) return Report(plan.status());
  Result<ShardFiles> files = EnsureShardFiles(*model, plan->ranges);
  if (!files.ok()) return Report(files.status());

  Signals signals;
  SystemClock clock;
  Result<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Launch(*plan, std::move(*files), SupervisorOptions(), clock);
  if (!cluster.ok()) return Report(cluster.status());
  Result<std::unique_ptr<TextModel>> text = CreateLlamaTextModel({model_path, ""});
  if (!text.ok()) return Report(text.status());
  if (!(*text)->has_tokenizer()) {
    return Report(BadModel(model_path + " has no tokenizer, so it cannot chat; `meshnet verify` works with token ids"));
  }
  return ConverseWith(**cluster, **text, *plan, flags, arguments, signals, clock);
}

}  // namespace

int Run(int argc, char** argv) {
  std::string model_path;
  SplitWish split;
  WorkerFlags worker_flags;
  ChatFlags flags;
  SplitFlags split_flags;
  Arguments arguments("run", "Cuts a model, starts its workers on this machine and chats in the terminal; one answer with -p. Stops all it started.");
  arguments.Positional("MODEL", &model_path, "a GGUF, or any part of a split one");
  split_flags.AddTo(arguments);
  flags.AddTo(arguments);
  worker_flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (std::optional<int> code = split_flags.Resolve(arguments, &split)) return *code;
  return RunModel(model_path, split, worker_flags, flags, arguments);
}

}  // namespace meshnet::cli
