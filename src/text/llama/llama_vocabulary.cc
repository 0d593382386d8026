#include "text/llama/llama_vocabulary.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>

#include "common.h"
#include "gguf/model_file.h"
#include "grammar/text_run.h"
#include "grammar/utf8.h"
#include "llama.h"
#include "log.h"

namespace meshnet::text {
namespace {

// Where llama.cpp's messages of this thread go while a model loads. They are dropped otherwise: several carry a user's text.
thread_local std::string* captured_log = nullptr;

struct Listener {
  ggml_log_callback call = nullptr;
  void* data = nullptr;
};

void OnLibraryLog(ggml_log_level level, const char* message, void* data) {
  const Listener& before = *static_cast<const Listener*>(data);
  if (before.call != nullptr) before.call(level, message, before.data);
  if (captured_log != nullptr && level >= GGML_LOG_LEVEL_ERROR && captured_log->size() < 4096) *captured_log += message;
}

// Whoever listened before goes on hearing: the engine's room, in a process that has both. llama.cpp's own listener, which prints, has no data.
void SilenceLibraries() {
  static std::once_flag once;
  static Listener before;
  std::call_once(once, [] {
    llama_log_get(&before.call, &before.data);
    if (before.data == nullptr) before.call = nullptr;
    llama_log_set(OnLibraryLog, &before);
    common_log_set_verbosity_thold(-1);
  });
}

// Longer ones get a thread with enough stack, up to this.
constexpr size_t kRunMax = 1u << 20;
constexpr size_t kStackPerCharacter = 1024;
constexpr size_t kStackBase = 1u << 20;

// Runs `work` on a thread of its own with that much stack, of which only what is used costs memory. False when there is no such thread.
bool RunOnStack(size_t stack_bytes, const std::function<void()>& work) {
  // One at a time: a hostile text may really use all of it.
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_t thread{};
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  const bool started = pthread_attr_setstacksize(&attributes, stack_bytes) == 0 &&
                       pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)) == 0;
  pthread_attr_destroy(&attributes);
  if (started) pthread_join(thread, nullptr);
  return started;
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

Status BadTokenizer(const std::string& path, const std::string& fault) { return BadModel(path + ": the tokenizer " + fault); }

// What llama.cpp would abort on.
Status CheckTokenizer(const gguf::ModelFile& file) {
  using gguf::ValueType;
  const std::string& path = file.path();
  const gguf::MetadataEntry* model = file.Find("tokenizer.ggml.model");
  if (model == nullptr || model->type != ValueType::kString) return BadTokenizer(path, "is missing (key tokenizer.ggml.model). Give the whole model or its head shard.");
  const std::string kind = file.String("tokenizer.ggml.model", "");
  if (kind == "no_vocab" || kind == "none") return OkStatus();
  const auto array_of = [&](const char* key, ValueType element) {
    const gguf::MetadataEntry* entry = file.Find(key);
    return entry == nullptr || (entry->type == ValueType::kArray && entry->element_type == element);
  };
  const gguf::MetadataEntry* tokens = file.Find("tokenizer.ggml.tokens");
  if (tokens == nullptr || !array_of("tokenizer.ggml.tokens", ValueType::kString) || tokens->count == 0) {
    return BadTokenizer(path, "has no list of tokens (key tokenizer.ggml.tokens).");
  }
  if (tokens->count > INT32_MAX) return BadTokenizer(path, "has too many tokens.");
  for (const auto& [key, element] : {std::pair{"tokenizer.ggml.scores", ValueType::kFloat32}, std::pair{"tokenizer.ggml.token_type", ValueType::kInt32}}) {
    const gguf::MetadataEntry* entry = file.Find(key);
    if (entry == nullptr) continue;
    if (!array_of(key, element)) return BadTokenizer(path, std::string("has a wrong type of values (key ") + key + ").");
    if (entry->count < tokens->count) return BadTokenizer(path, std::string("has fewer values than tokens (key ") + key + ").");
  }
  if (!array_of("tokenizer.ggml.merges", ValueType::kString)) return BadTokenizer(path, "has a wrong type of values (key tokenizer.ggml.merges).");
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<LlamaVocabulary>> LlamaVocabulary::Load(const std::string& path) {
  SilenceLibraries();
  auto file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  if (Status status = CheckTokenizer(*file); !status.ok()) return status;

  std::unique_ptr<LlamaVocabulary> vocabulary(new LlamaVocabulary());
  std::string errors;
  captured_log = &errors;
  try {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    vocabulary->model_ = llama_model_load_from_file(file->parts().front().path.c_str(), params);
  } catch (const std::bad_alloc&) {
    captured_log = nullptr;
    return OutOfMemory("there is not enough memory to load the tokenizer of " + path);
  } catch (const std::exception& fault) {
    errors = fault.what();
  }
  captured_log = nullptr;
  if (vocabulary->model_ == nullptr) return BadModel(path + ": llama.cpp cannot load the tokenizer: " + OneLine(errors));

  vocabulary->vocab_ = llama_model_get_vocab(vocabulary->model_);
  vocabulary->has_tokenizer_ = llama_vocab_type(vocabulary->vocab_) != LLAMA_VOCAB_TYPE_NONE;
  vocabulary->size_ = static_cast<uint32_t>(std::max(0, llama_vocab_n_tokens(vocabulary->vocab_)));
  if (vocabulary->size_ == 0) return BadTokenizer(path, "is empty.");
  const std::string architecture = file->String("general.architecture", "");
  vocabulary->training_context_ = static_cast<uint32_t>(std::clamp<int64_t>(file->Integer(architecture + ".context_length").value_or(0), 0, UINT32_MAX));
  vocabulary->model_name_ = file->String("general.name", "");
  if (vocabulary->model_name_.empty()) vocabulary->model_name_ = std::filesystem::path(path).stem().string();

  vocabulary->is_end_.assign(vocabulary->size_, false);
  if (!vocabulary->has_tokenizer_) return vocabulary;
  size_t longest = 1;
  for (Token token = 0; vocabulary->InRange(token); ++token) {
    if (llama_vocab_is_eog(vocabulary->vocab_, token)) {
      vocabulary->is_end_[static_cast<size_t>(token)] = true;
      vocabulary->end_tokens_.push_back(token);
    }
    const std::string piece = vocabulary->Piece(token, SpecialTokens::kShow);
    longest = std::max(longest, piece.size());
    size_t at = 0;
    const char32_t first = piece.empty() ? 0 : grammar::TakeCodePoint(piece, at);
    if (at == piece.size()) continue;
    vocabulary->joined_.insert(first);
    while (at < piece.size()) vocabulary->joined_.insert(grammar::TakeCodePoint(piece, at));
  }
  const auto type = llama_vocab_type(vocabulary->vocab_);
  if (type != LLAMA_VOCAB_TYPE_WPM && type != LLAMA_VOCAB_TYPE_UGM) vocabulary->piece_bytes_max_ = longest;
  return vocabulary;
}

LlamaVocabulary::~LlamaVocabulary() {
  if (model_ != nullptr) llama_model_free(model_);
}

bool LlamaVocabulary::IsEndOfGeneration(Token token) const { return InRange(token) && is_end_[static_cast<size_t>(token)]; }

std::optional<std::vector<Token>> LlamaVocabulary::Tokenize(const std::string& text, BeginningOfText beginning, bool markers) const {
  if (!has_tokenizer_ || text.size() > INT32_MAX / 4) return std::nullopt;
  std::optional<std::vector<Token>> tokens;
  const auto tokenize = [&] {
    try {
      tokens = common_tokenize(vocab_, text, beginning == BeginningOfText::kAsTheModelAsks, markers);
    } catch (const std::exception&) {
      tokens.reset();
    }
  };
  const size_t run = grammar::LongestRun(text);
  if (run <= grammar::kRunOnAnyStack) {
    tokenize();
  } else if (run > kRunMax || !RunOnStack(kStackBase + run * kStackPerCharacter, tokenize)) {
    return std::nullopt;
  }
  return tokens;
}

size_t LlamaVocabulary::TokensAtLeast(const std::string& text) const {
  if (!piece_bytes_max_) return 0;
  size_t alone = 0, bytes_alone = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (joined_.contains(grammar::TakeCodePoint(text, at))) continue;
    ++alone;
    bytes_alone += at - begin;
  }
  return alone + (text.size() - bytes_alone) / *piece_bytes_max_;
}

std::string LlamaVocabulary::Piece(Token token, SpecialTokens special) const {
  if (!has_tokenizer_ || !InRange(token)) return "";
  try {
    return common_token_to_piece(vocab_, token, special == SpecialTokens::kShow);
  } catch (const std::exception&) {
    return "";
  }
}

std::string LlamaVocabulary::Detokenize(const std::vector<Token>& tokens) const {
  std::string text;
  for (Token token : tokens) text += Piece(token, SpecialTokens::kShow);
  return text;
}

std::string LlamaVocabulary::beginning_of_text() const { return has_tokenizer_ ? Piece(llama_vocab_bos(vocab_), SpecialTokens::kShow) : ""; }
std::string LlamaVocabulary::end_of_text() const { return has_tokenizer_ ? Piece(llama_vocab_eos(vocab_), SpecialTokens::kShow) : ""; }

}  // namespace meshnet::text
