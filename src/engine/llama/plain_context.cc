#include "engine/llama/plain_context.h"

#include <algorithm>

#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/llama_model_load.h"
#include "engine/llama/system_cores.h"

namespace meshnet {
namespace {

// Owns llama.cpp's arrays of one call.
class TokenBatch {
 public:
  explicit TokenBatch(int32_t tokens_max) : batch_(llama_batch_init(tokens_max, 0, 1)) {}
  ~TokenBatch() { llama_batch_free(batch_); }
  TokenBatch(const TokenBatch&) = delete;
  TokenBatch& operator=(const TokenBatch&) = delete;

  void Clear() { batch_.n_tokens = 0; }
  void Add(Token token, llama_pos position, llama_seq_id sequence, bool output) {
    int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = output ? 1 : 0;
  }
  llama_batch& get() { return batch_; }

 private:
  llama_batch batch_;
};

class LlamaPlainContext : public PlainContext {
 public:
  LlamaPlainContext(LlamaModelPtr model, LlamaContextPtr context, const EngineSettings& settings)
      : model_(std::move(model)),
        context_(std::move(context)),
        batch_(static_cast<int32_t>(std::max(settings.batch_tokens, settings.sessions))),
        chunk_rows_(settings.chunk_rows),
        lengths_(settings.sessions, 0) {
    vocabulary_size_ = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
  }

  uint32_t vocabulary_size() const override { return vocabulary_size_; }

  Result<Token> Prefill(SequenceId sequence, std::span<const Token> prompt) override {
    if (sequence.value < 0 || static_cast<size_t>(sequence.value) >= lengths_.size()) return Failure("a sequence that the context does not have");
    llama_pos& length = lengths_[static_cast<size_t>(sequence.value)];
    for (size_t begin = 0; begin < prompt.size(); begin += chunk_rows_) {
      size_t end = std::min(prompt.size(), begin + chunk_rows_);
      batch_.Clear();
      for (size_t i = begin; i < end; ++i) batch_.Add(prompt[i], length++, sequence.value, i + 1 == prompt.size());
      Status status = Run();
      if (!status.ok()) return status;
    }
    return Likeliest(-1);
  }

  Result<std::vector<Token>> Decode(std::span<const Token> tokens) override {
    if (tokens.size() > lengths_.size()) return Failure("more tokens than sequences");
    batch_.Clear();
    for (size_t i = 0; i < tokens.size(); ++i) batch_.Add(tokens[i], lengths_[i]++, static_cast<llama_seq_id>(i), true);
    Status status = Run();
    if (!status.ok()) return status;
    std::vector<Token> next;
    for (size_t i = 0; i < tokens.size(); ++i) next.push_back(Likeliest(static_cast<int32_t>(i)));
    return next;
  }

  void Reset() override {
    llama_memory_clear(llama_get_memory(context_.get()), false);
    std::fill(lengths_.begin(), lengths_.end(), 0);
  }

 private:
  Status Run() {
    int32_t code = llama_decode(context_.get(), batch_.get());
    if (code == 0) return OkStatus();
    return Failure("llama_decode returned " + std::to_string(code) + ": " + TakeLlamaComplaint());
  }

  Token Likeliest(int32_t row) const {
    const float* logits = llama_get_logits_ith(context_.get(), row);
    return static_cast<Token>(std::max_element(logits, logits + vocabulary_size_) - logits);
  }

  LlamaModelPtr model_;
  LlamaContextPtr context_;
  TokenBatch batch_;
  size_t chunk_rows_;
  uint32_t vocabulary_size_ = 0;
  std::vector<llama_pos> lengths_;
};

}  // namespace

Result<std::unique_ptr<PlainContext>> CreatePlainContext(const std::string& model_path, const EngineOptions& options) {
  Result<EngineSettings> settings = ResolveSettings(options, OutputRows::kFew, PhysicalCores());
  if (!settings.ok()) return settings.status();
  UseLlamaLibrary();
  Result<LlamaModelPtr> model = LoadLlamaModel(model_path, *settings);
  if (!model.ok()) return model.status();
  Result<LlamaContextPtr> context = CreateLlamaContext(model->get(), *settings, {});
  if (!context.ok()) return context.status();
  return std::unique_ptr<PlainContext>(std::make_unique<LlamaPlainContext>(std::move(*model), std::move(*context), *settings));
}

}  // namespace meshnet
