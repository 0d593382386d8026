#include "tiny/tiny_model.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "gguf/gguf_writer.h"
#include "gguf/model_file.h"
#include "tiny/tiny_architectures.h"

namespace meshnet::tiny {
namespace {

using gguf::MetadataEntry;

constexpr char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Keeps the first `count` elements of a per-token array.
void Shorten(MetadataEntry* entry, uint64_t count) {
  if (entry->type != gguf::ValueType::kArray || entry->count <= count) return;
  if (entry->element_type == gguf::ValueType::kString) {
    entry->strings.resize(count);
  } else {
    entry->raw.resize(entry->raw.size() / entry->count * count);
  }
  entry->count = count;
}

struct Tokenizer {
  std::vector<MetadataEntry> metadata;
  uint32_t tokens = 0;
};

Result<Tokenizer> CopyTokenizer(const TinyModelOptions& options) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(options.vocabulary_file);
  if (!file.ok()) return file.status();
  const MetadataEntry* tokens = file->Find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return BadConfiguration(options.vocabulary_file + " has no tokenizer");
  Tokenizer tokenizer;
  tokenizer.tokens = static_cast<uint32_t>(tokens->count);
  if (options.vocabulary_max != 0 && file->String("tokenizer.ggml.model", "") == "llama") {
    tokenizer.tokens = std::min(tokenizer.tokens, options.vocabulary_max);
  }
  for (MetadataEntry entry : file->metadata()) {
    if (!entry.key.starts_with("tokenizer.")) continue;
    if (entry.key == "tokenizer.chat_template") continue;
    if (entry.key != "tokenizer.ggml.merges") Shorten(&entry, tokenizer.tokens);
    tokenizer.metadata.push_back(std::move(entry));
  }
  tokenizer.metadata.push_back(MetadataEntry::String("tokenizer.chat_template", kChatMl));
  return tokenizer;
}

}  // namespace

std::string VocabularyFile(const std::string& name) { return std::string(MESHNET_LLAMA_DIR) + "/models/ggml-vocab-" + name + ".gguf"; }

TinyModelOptions TextModelOptions() {
  TinyModelOptions options;
  options.vocabulary_file = VocabularyFile("llama-spm");
  return options;
}

Status WriteTinyModel(const TinyModelOptions& options, const std::string& path) {
  if (options.layers == 0 || options.heads == 0 || options.heads_kv == 0 || options.heads % options.heads_kv != 0 ||
      options.width % (32 * options.heads) != 0 || options.feed_forward % 32 != 0) {
    return BadConfiguration("the sizes of the tiny model do not go together");
  }
  Tokenizer tokenizer;
  if (options.vocabulary_file.empty()) {
    tokenizer.tokens = options.vocabulary;
    tokenizer.metadata.push_back(MetadataEntry::String("tokenizer.ggml.model", "no_vocab"));
  } else {
    Result<Tokenizer> copied = CopyTokenizer(options);
    if (!copied.ok()) return copied.status();
    tokenizer = std::move(copied).value();
  }
  Result<TinyModel> model = DescribeModel(options, tokenizer.tokens);
  if (!model.ok()) return model.status();
  model->metadata.push_back(MetadataEntry::Uint32(options.architecture + ".vocab_size", tokenizer.tokens));
  for (MetadataEntry& entry : tokenizer.metadata) model->metadata.push_back(std::move(entry));

  std::vector<gguf::TensorLayout> layouts;
  std::vector<std::string> data;
  for (const TinyTensor& tensor : model->tensors) {
    data.push_back(RandomTensor(tensor, options.seed));
    layouts.push_back({tensor.name, GgmlTypeId(tensor.type), tensor.dims, data.back().size()});
  }
  const gguf::EncodedHeader header = gguf::EncodeHeader(model->metadata, layouts);
  std::string bytes = header.bytes;
  for (size_t i = 0; i < data.size(); ++i) {
    bytes.resize(header.offsets[i], '\0');
    bytes += data[i];
  }
  bytes.resize(header.file_bytes, '\0');
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return Failure(path + ": cannot be written: " + std::strerror(errno));
  return OkStatus();
}

}  // namespace meshnet::tiny
