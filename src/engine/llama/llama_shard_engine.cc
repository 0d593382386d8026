#include "engine/llama/llama_shard_engine.h"

#include <optional>
#include <utility>

#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_engine.h"
#include "engine/llama/llama_engine_create.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/llama_model_load.h"
#include "engine/llama/numerics.h"
#include "engine/llama/system_cores.h"
#include "gguf/architecture_table.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gguf/shard_file.h"

namespace meshnet {
namespace {

// What the file claims to be. A whole model is the shard of all its layers.
struct ShardClaim {
  LayerRange range;
  uint32_t layer_count = 0;
  uint32_t boundary_width = 0;
  uint32_t vocabulary_size = 0;
  std::string architecture;
  std::string boundary_tensor;     // empty on the tail
  uint32_t positions_per_row = 1;  // of injected rows

  bool head() const { return range.begin == 0; }
  bool tail() const { return range.end == layer_count; }
};

Status ApplyRule(const std::string& path, ShardClaim& claim) {
  if (claim.head() && claim.tail()) return OkStatus();
  const gguf::ArchitectureRule* rule = gguf::FindArchitecture(claim.architecture);
  if (!rule) {
    return Refused(path + " holds layers " + claim.range.Text() + " of architecture " + claim.architecture + ", which is not cut: " +
                   gguf::RefusalReason(claim.architecture));
  }
  if (!claim.tail()) claim.boundary_tensor = gguf::BoundaryTensor(*rule, claim.range.size() - 1);
  claim.positions_per_row = rule->positions_per_token;
  return OkStatus();
}

Result<ShardClaim> ReadClaim(const gguf::ModelFile& file) {
  ShardClaim claim;
  Result<std::optional<gguf::ShardIdentity>> identity = gguf::ReadShardIdentity(file);
  if (!identity.ok()) return identity.status();
  if (identity->has_value()) {
    const gguf::ShardIdentity& shard = **identity;
    claim.range = shard.range;
    claim.layer_count = shard.layer_count;
    claim.boundary_width = shard.boundary_width;
    claim.vocabulary_size = shard.vocabulary_size;
    claim.architecture = shard.architecture;
  } else {
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(file);
    if (!shape.ok()) return shape.status();
    claim.range = {0, shape->layer_count};
    claim.layer_count = shape->layer_count;
    claim.boundary_width = shape->boundary_width;
    claim.vocabulary_size = shape->vocabulary_size;
    claim.architecture = shape->architecture;
  }
  if (Status status = ApplyRule(file.path(), claim); !status.ok()) return status;
  return claim;
}

// What llama.cpp made of the file must be what the file claims.
Status CheckLoaded(const std::string& path, const ShardClaim& claim, const llama_model* model) {
  const auto layers = static_cast<uint32_t>(llama_model_n_layer(model));
  const auto width = static_cast<uint32_t>(llama_model_n_embd(model));
  const auto width_in = static_cast<uint32_t>(llama_model_n_embd_inp(model));
  const auto vocabulary = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  const auto mismatch = [&](const char* what, uint32_t claimed, uint32_t found) {
    return BadModel(path + " claims " + what + " " + std::to_string(claimed) + ", but llama.cpp reads " + std::to_string(found) +
                    "; cut the model again");
  };
  if (layers != claim.range.size()) return mismatch("a layer count of", claim.range.size(), layers);
  if (width != claim.boundary_width) return mismatch("a boundary width of", claim.boundary_width, width);
  if (!claim.head() && width_in != claim.boundary_width) return mismatch("an input width of", claim.boundary_width, width_in);
  if ((claim.head() || claim.tail()) && vocabulary != claim.vocabulary_size) {
    return mismatch("a vocabulary of", claim.vocabulary_size, vocabulary);
  }
  if (!llama_model_has_decoder(model) || llama_model_has_encoder(model) || llama_model_is_diffusion(model)) {
    return Refused(path + " is no text generating decoder");
  }
  return OkStatus();
}

EngineInfo InfoOf(const ShardClaim& claim, const EngineSettings& settings, const llama_model* model, const llama_context* context) {
  EngineInfo info;
  info.range = claim.range;
  info.layer_count = claim.layer_count;
  info.boundary_width = claim.boundary_width;
  info.vocabulary_size = claim.vocabulary_size;
  // Read back: llama.cpp rounds (docs/engine.md, L7).
  info.sequences_max = llama_n_seq_max(context);
  info.context_tokens = llama_n_ctx_seq(context);
  info.budget_tokens = llama_n_ctx(context);
  info.chunk_rows_max = std::min(settings.chunk_rows, llama_n_ubatch(context));
  const auto window = static_cast<uint32_t>(llama_model_n_swa(model));
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
    info.truncation_class = TruncationClass::kWhole;
  } else if (window > 0) {
    info.truncation_class = TruncationClass::kWindow;
    info.window_tokens = window;
  }
  info.numerics = FingerprintOf(settings, info.context_tokens);
  return info;
}

void ReleasePages(const gguf::ModelFile& file) {
  for (const gguf::Part& part : file.parts()) ReleaseMappedPages(part.path);
}

class LlamaReference : public ReferenceContext {
 public:
  LlamaReference(LlamaModelPtr model, LlamaContextPtr context, uint32_t boundary_width)
      : model_(std::move(model)), context_(std::move(context)), batch_builder_(boundary_width, 1) {}

  uint32_t vocabulary_size() const override { return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))); }

  Result<HiddenState> Decode(std::span<const Token> tokens) override {
    if (tokens.empty() || tokens.size() > llama_n_ubatch(context_.get())) {
      return BadConfiguration("the reference takes chunks of 1 to " + std::to_string(llama_n_ubatch(context_.get())) + " tokens, not " +
                              std::to_string(tokens.size()));
    }
    if (past_ + tokens.size() > llama_n_ctx_seq(context_.get())) return BadConfiguration("the reference's context is full");
    for (Token token : tokens) {
      if (token < 0 || static_cast<uint32_t>(token) >= vocabulary_size()) return BadConfiguration("token " + std::to_string(token) + " is not in the vocabulary");
    }
    const EngineStep step = {.sequence = SequenceId(0), .start = PastLen(past_), .tokens = tokens};
    const auto rows = static_cast<uint32_t>(tokens.size());
    const int32_t code = llama_decode(context_.get(), batch_builder_.Build({&step, 1}, {&rows, 1}));
    if (code != 0) return Failure("llama_decode failed with code " + std::to_string(code) + " in the reference (" + TakeLlamaComplaint() + ")");
    past_ += rows;
    std::vector<float> values;
    values.reserve(size_t{rows} * vocabulary_size());
    for (uint32_t row = 0; row < rows; ++row) {
      const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(row));
      values.insert(values.end(), logits, logits + vocabulary_size());
    }
    return HiddenState(rows, vocabulary_size(), std::move(values));
  }

  void Reset() override {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    past_ = 0;
  }

 private:
  LlamaModelPtr model_;
  LlamaContextPtr context_;
  LlamaBatchBuilder batch_builder_;
  uint32_t past_ = 0;
};

}  // namespace

Result<std::unique_ptr<LlamaEngine>> CreateLlamaEngine(const EngineOptions& options, const EngineFaultHook& hook) {
  UseLlamaLibrary();
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(options.shard_path);
  if (!file.ok()) return file.status();
  Result<ShardClaim> claim = ReadClaim(*file);
  if (!claim.ok()) return claim.status();
  Result<EngineSettings> settings = ResolveSettings(options, claim->tail() ? OutputRows::kFew : OutputRows::kAll, PhysicalCores());
  if (!settings.ok()) return settings.status();
  if (settings->numerics == NumericsMode::kExact) {
    Result<std::optional<gguf::ShardIdentity>> identity = gguf::ReadShardIdentity(*file);
    if (!identity.ok()) return identity.status();
    const std::vector<std::string> holes = *identity ? (*identity)->holes : std::vector<std::string>();
    if (Status status = CheckExactWeights(file->tensors(), holes); !status.ok()) return status;
  }
  LlamaEngineParts parts;
  parts.settings = *settings;
  parts.positions_per_row = claim->positions_per_row;
  Result<LlamaModelPtr> model = LoadLlamaModel(options.shard_path, *settings);
  if (!model.ok()) return model.status();
  parts.model = std::move(*model);
  ReleasePages(*file);
  if (Status status = CheckLoaded(options.shard_path, *claim, parts.model.get()); !status.ok()) return status;

  ContextCallbacks callbacks;
  callbacks.abort = hook.abort;
  callbacks.abort_data = hook.data;
  if (!claim->boundary_tensor.empty()) {
    parts.capture = std::make_unique<LlamaBoundaryCapture>(claim->boundary_tensor, claim->boundary_width);
    callbacks.on_tensor = LlamaBoundaryCapture::OnTensor;
    callbacks.on_tensor_data = parts.capture.get();
  }
  Result<LlamaContextPtr> context = CreateLlamaContext(parts.model.get(), *settings, callbacks);
  if (!context.ok()) return context.status();
  parts.context = std::move(*context);
  parts.graph = LookAtGraph(parts.context.get(), claim->boundary_tensor, claim->boundary_width);
  if (parts.capture && !parts.graph.has_boundary) {
    return BadModel(options.shard_path + ": llama.cpp's graph of " + claim->architecture + " has no tensor " + claim->boundary_tensor + " of " +
                    std::to_string(claim->boundary_width) + " values; this architecture needs another rule");
  }
  parts.info = InfoOf(*claim, *settings, parts.model.get(), parts.context.get());
  return std::make_unique<LlamaEngine>(std::move(parts));
}

Result<std::unique_ptr<Engine>> CreateLlamaShardEngine(const EngineOptions& options) {
  Result<std::unique_ptr<LlamaEngine>> engine = CreateLlamaEngine(options, EngineFaultHook());
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(std::move(*engine));
}

Result<std::unique_ptr<ReferenceContext>> CreateReferenceContext(const std::string& model_path, const EngineOptions& options) {
  UseLlamaLibrary();
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(model_path);
  if (!file.ok()) return file.status();
  Result<EngineSettings> settings = ResolveSettings(options, OutputRows::kFew, PhysicalCores());
  if (!settings.ok()) return settings.status();
  if (settings->numerics == NumericsMode::kExact) {
    if (Status status = CheckExactWeights(file->tensors(), {}); !status.ok()) return status;
  }
  // One sequence, with the cells that one sequence of the workers has: their number picks long-RoPE factors.
  if (settings->partitioned) settings->cells /= settings->sessions;
  settings->partitioned = true;
  settings->sessions = 1;
  Result<LlamaModelPtr> model = LoadLlamaModel(model_path, *settings);
  if (!model.ok()) return model.status();
  ReleasePages(*file);
  Result<LlamaContextPtr> context = CreateLlamaContext(model->get(), *settings, ContextCallbacks());
  if (!context.ok()) return context.status();
  const auto width = static_cast<uint32_t>(llama_model_n_embd(model->get()));
  return std::unique_ptr<ReferenceContext>(std::make_unique<LlamaReference>(std::move(*model), std::move(*context), width));
}

}  // namespace meshnet
