#include "tiny/tiny_architectures.h"

#include <cmath>

namespace meshnet::tiny {
namespace {

using gguf::MetadataEntry;

// Collects keys and tensors of one model; each architecture is a function over it.
class Builder {
 public:
  Builder(const TinyModelOptions& options, uint32_t vocabulary) : options_(options), vocabulary_(vocabulary) {}

  const TinyModelOptions& options() const { return options_; }
  uint32_t head_width() const { return options_.width / options_.heads; }
  TinyModel Take() { return std::move(model_); }

  void Key(const std::string& key, uint32_t value) { model_.metadata.push_back(MetadataEntry::Uint32(Name(key), value)); }
  void Real(const std::string& key, float value) { model_.metadata.push_back(MetadataEntry::Float32(Name(key), value)); }
  // In place of a number that is there already.
  void Array(const std::string& key, const std::vector<uint32_t>& values) {
    for (MetadataEntry& entry : model_.metadata) {
      if (entry.key == Name(key)) entry = MetadataEntry::Uint32Array(Name(key), values);
    }
  }
  void Flag(const std::string& key, bool value) { model_.metadata.push_back(MetadataEntry::Bool(Name(key), value)); }

  // A matrix keeps the size of what flows through it: spread 1/sqrt(rows of input).
  void Matrix(const std::string& name, std::vector<uint64_t> dims) {
    const float spread = 1.0f / std::sqrt(static_cast<float>(dims[0]));
    model_.tensors.push_back({name + ".weight", std::move(dims), options_.weights, spread, 0.0f});
  }
  void Norm(const std::string& name, uint64_t width) { model_.tensors.push_back({name + ".weight", {width}, WeightType::kF32, 0.1f, 1.0f}); }
  void Bias(const std::string& name, std::vector<uint64_t> dims) {
    model_.tensors.push_back({name + ".bias", std::move(dims), WeightType::kF32, 0.1f, 0.0f});
  }
  // Small and always f32, as converters write them.
  void Plain(const std::string& name, std::vector<uint64_t> dims) {
    const float spread = 1.0f / std::sqrt(static_cast<float>(dims[0]));
    model_.tensors.push_back({name + ".weight", std::move(dims), WeightType::kF32, spread, 0.0f});
  }
  // Of a recurrent state, around -1, without a suffix.
  void Decay(const std::string& name, std::vector<uint64_t> dims) { model_.tensors.push_back({name, std::move(dims), WeightType::kF32, 0.2f, -1.0f}); }

  void CommonKeys() {
    model_.metadata.push_back(MetadataEntry::String("general.architecture", options_.architecture));
    model_.metadata.push_back(MetadataEntry::String("general.name", "tiny " + options_.architecture));
    Key("context_length", options_.context);
    Key("embedding_length", options_.width);
    Key("block_count", options_.layers);
    Key("feed_forward_length", options_.feed_forward);
    Key("attention.head_count", options_.heads);
    Key("attention.head_count_kv", options_.heads_kv);
    Real("attention.layer_norm_rms_epsilon", 1e-5f);
  }
  void Ends() {
    model_.tensors.push_back({"token_embd.weight", {options_.width, vocabulary_}, options_.weights, 1.0f, 0.0f});
    Norm("output_norm", options_.width);
    if (!options_.tied) Matrix("output", {options_.width, vocabulary_});
  }
  void SplitAttention(const std::string& block, uint64_t head_width) {
    const uint64_t width = options_.width;
    Matrix(block + "attn_q", {width, head_width * options_.heads});
    Matrix(block + "attn_k", {width, head_width * options_.heads_kv});
    Matrix(block + "attn_v", {width, head_width * options_.heads_kv});
    Matrix(block + "attn_output", {head_width * options_.heads, width});
  }
  void QueryKeyNorms(const std::string& block) {
    Norm(block + "attn_q_norm", head_width());
    Norm(block + "attn_k_norm", head_width());
  }
  void DenseFeedForward(const std::string& block) {
    Matrix(block + "ffn_gate", {options_.width, options_.feed_forward});
    Matrix(block + "ffn_up", {options_.width, options_.feed_forward});
    Matrix(block + "ffn_down", {options_.feed_forward, options_.width});
  }
  void Experts(const std::string& block) {
    Plain(block + "ffn_gate_inp", {options_.width, options_.experts});
    Matrix(block + "ffn_gate_exps", {options_.width, options_.feed_forward, options_.experts});
    Matrix(block + "ffn_up_exps", {options_.width, options_.feed_forward, options_.experts});
    Matrix(block + "ffn_down_exps", {options_.feed_forward, options_.width, options_.experts});
  }
  void ExpertKeys() {
    Key("expert_count", options_.experts);
    Key("expert_used_count", 2);
    Key("expert_feed_forward_length", options_.feed_forward);
  }
  std::string Block(uint32_t layer) const { return "blk." + std::to_string(layer) + "."; }

 private:
  std::string Name(const std::string& key) const { return options_.architecture + "." + key; }

  TinyModelOptions options_;
  uint32_t vocabulary_;
  TinyModel model_;
};

void DescribeLlama(Builder& b) {
  b.Key("rope.dimension_count", b.head_width());
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", b.options().width);
    b.SplitAttention(block, b.head_width());
    b.Norm(block + "ffn_norm", b.options().width);
    b.DenseFeedForward(block);
  }
}

void DescribeQwen2(Builder& b) {
  b.Real("rope.freq_base", 1000000.0f);
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", b.options().width);
    b.SplitAttention(block, b.head_width());
    b.Bias(block + "attn_q", {b.head_width() * b.options().heads});
    b.Bias(block + "attn_k", {b.head_width() * b.options().heads_kv});
    b.Bias(block + "attn_v", {b.head_width() * b.options().heads_kv});
    b.Norm(block + "ffn_norm", b.options().width);
    b.DenseFeedForward(block);
  }
}

void DescribeQwen3(Builder& b) {
  b.Real("rope.freq_base", 1000000.0f);
  b.Key("attention.key_length", b.head_width());
  b.Key("attention.value_length", b.head_width());
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", b.options().width);
    b.SplitAttention(block, b.head_width());
    b.QueryKeyNorms(block);
    b.Norm(block + "ffn_norm", b.options().width);
    b.DenseFeedForward(block);
  }
}

void DescribeQwen3Moe(Builder& b) {
  b.Real("rope.freq_base", 1000000.0f);
  b.ExpertKeys();
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", b.options().width);
    b.SplitAttention(block, b.head_width());
    b.QueryKeyNorms(block);
    b.Norm(block + "ffn_norm", b.options().width);
    b.Experts(block);
  }
}

// The window pattern is left to the code's default: every sixth layer is a full one.
void DescribeGemma3(Builder& b) {
  b.Key("attention.sliding_window", b.options().window);
  b.Key("attention.key_length", b.head_width());
  b.Key("attention.value_length", b.head_width());
  b.Real("rope.freq_base", 1000000.0f);
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", b.options().width);
    b.SplitAttention(block, b.head_width());
    b.QueryKeyNorms(block);
    b.Norm(block + "post_attention_norm", b.options().width);
    b.Norm(block + "ffn_norm", b.options().width);
    b.DenseFeedForward(block);
    b.Norm(block + "post_ffw_norm", b.options().width);
  }
}

void DescribePhi3(Builder& b) {
  const uint64_t width = b.options().width;
  const uint64_t kv = static_cast<uint64_t>(b.head_width()) * b.options().heads_kv;
  b.Key("rope.dimension_count", b.head_width());
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", width);
    b.Matrix(block + "attn_qkv", {width, width + 2 * kv});
    b.Matrix(block + "attn_output", {width, width});
    b.Norm(block + "ffn_norm", width);
    b.Matrix(block + "ffn_up", {width, 2 * b.options().feed_forward});
    b.Matrix(block + "ffn_down", {b.options().feed_forward, width});
  }
}

void DescribeGptOss(Builder& b) {
  const uint64_t width = b.options().width;
  b.Key("attention.sliding_window", b.options().window);
  b.ExpertKeys();
  b.Key("attention.key_length", b.head_width());
  b.Key("attention.value_length", b.head_width());
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", width);
    b.SplitAttention(block, b.head_width());
    b.Bias(block + "attn_q", {b.head_width() * b.options().heads});
    b.Bias(block + "attn_k", {b.head_width() * b.options().heads_kv});
    b.Bias(block + "attn_v", {b.head_width() * b.options().heads_kv});
    b.Bias(block + "attn_output", {width});
    b.Plain(block + "attn_sinks", {b.options().heads});
    b.Norm(block + "post_attention_norm", width);
    b.Experts(block);
    b.Bias(block + "ffn_gate_inp", {b.options().experts});
    b.Bias(block + "ffn_gate_exps", {b.options().feed_forward, b.options().experts});
    b.Bias(block + "ffn_up_exps", {b.options().feed_forward, b.options().experts});
    b.Bias(block + "ffn_down_exps", {width, b.options().experts});
  }
}

// Full size, with a latent cache: keys of the latent width and the rotary part, one head. The first layer is dense.
void DescribeDeepseek2(Builder& b) {
  const uint64_t width = b.options().width, heads = b.options().heads;
  const uint64_t query_rank = 32, latent = 32, rotary = 32, plain = 32, value = 32;
  b.Key("leading_dense_block_count", 1);
  b.Key("attention.q_lora_rank", query_rank);
  b.Key("attention.kv_lora_rank", latent);
  b.Key("attention.key_length", latent + rotary);
  b.Key("attention.value_length", latent);
  b.Key("attention.key_length_mla", plain + rotary);
  b.Key("attention.value_length_mla", value);
  b.Key("rope.dimension_count", rotary);
  b.ExpertKeys();
  b.Key("expert_shared_count", 1);
  b.Real("expert_weights_scale", 1.5f);
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    b.Norm(block + "attn_norm", width);
    b.Matrix(block + "attn_q_a", {width, query_rank});
    b.Norm(block + "attn_q_a_norm", query_rank);
    b.Matrix(block + "attn_q_b", {query_rank, heads * (plain + rotary)});
    b.Matrix(block + "attn_kv_a_mqa", {width, latent + rotary});
    b.Norm(block + "attn_kv_a_norm", latent);
    b.Matrix(block + "attn_k_b", {plain, latent, heads});
    b.Matrix(block + "attn_v_b", {latent, value, heads});
    b.Matrix(block + "attn_output", {heads * value, width});
    b.Norm(block + "ffn_norm", width);
    if (i == 0) {
      b.DenseFeedForward(block);
      continue;
    }
    b.Experts(block);
    b.Matrix(block + "ffn_gate_shexp", {width, b.options().feed_forward});
    b.Matrix(block + "ffn_up_shexp", {width, b.options().feed_forward});
    b.Matrix(block + "ffn_down_shexp", {b.options().feed_forward, width});
  }
}

// Recurrent: a state of fixed size instead of cells.
void MambaBlock(Builder& b, const std::string& block) {
  const uint64_t width = b.options().width, inner = 2 * width, state = 32, rank = 32, kernel = 4;
  b.Matrix(block + "ssm_in", {width, 2 * inner});
  b.Plain(block + "ssm_conv1d", {kernel, inner});
  b.Bias(block + "ssm_conv1d", {inner});
  b.Matrix(block + "ssm_x", {inner, rank + 2 * state});
  b.Matrix(block + "ssm_dt", {rank, inner});
  b.Bias(block + "ssm_dt", {inner});
  b.Decay(block + "ssm_a", {state, inner});
  b.Decay(block + "ssm_d", {inner});
  b.Matrix(block + "ssm_out", {inner, width});
}

void MambaKeys(Builder& b) {
  b.Key("ssm.conv_kernel", 4);
  b.Key("ssm.inner_size", 2 * b.options().width);
  b.Key("ssm.state_size", 32);
  b.Key("ssm.time_step_rank", 32);
}

void DescribeMamba(Builder& b) {
  MambaKeys(b);
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    b.Norm(b.Block(i) + "attn_norm", b.options().width);
    MambaBlock(b, b.Block(i));
  }
}

// Hybrid: every other layer attends.
void DescribeJamba(Builder& b) {
  MambaKeys(b);
  std::vector<uint32_t> heads_kv;
  for (uint32_t i = 0; i < b.options().layers; ++i) {
    const std::string block = b.Block(i);
    heads_kv.push_back(i % 2 == 0 ? 0 : b.options().heads_kv);
    b.Norm(block + "attn_norm", b.options().width);
    if (heads_kv.back() == 0) {
      MambaBlock(b, block);
      for (const char* norm : {"ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"}) b.Norm(block + norm, 32);
    } else {
      b.SplitAttention(block, b.head_width());
    }
    b.Norm(block + "ffn_norm", b.options().width);
    b.DenseFeedForward(block);
  }
  b.Array("attention.head_count_kv", heads_kv);
}

struct Known {
  const char* architecture;
  void (*describe)(Builder&);
  bool output_required;          // cannot be tied
  bool cut = true;               // certified for cuts; else it is loaded whole only
};
constexpr Known kKnown[] = {
    {"llama", DescribeLlama, false},
    {"qwen2", DescribeQwen2, false},
    {"qwen3", DescribeQwen3, false},
    {"qwen3moe", DescribeQwen3Moe, false},
    {"gemma3", DescribeGemma3, false},
    {"phi3", DescribePhi3, false},
    {"gpt-oss", DescribeGptOss, true},
    {"deepseek2", DescribeDeepseek2, false},
    {"mamba", DescribeMamba, false, false},
    {"jamba", DescribeJamba, false, false},
};

}  // namespace

std::vector<std::string> TinyArchitectures() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    if (known.cut) names.push_back(known.architecture);
  }
  return names;
}

Result<TinyModel> DescribeModel(const TinyModelOptions& options, uint32_t vocabulary) {
  for (const Known& known : kKnown) {
    if (options.architecture != known.architecture) continue;
    if (options.tied && known.output_required) return BadConfiguration(options.architecture + " cannot be tied");
    Builder builder(options, vocabulary);
    builder.CommonKeys();
    known.describe(builder);
    builder.Ends();
    return builder.Take();
  }
  return BadConfiguration("no tiny model of architecture " + options.architecture);
}

}  // namespace meshnet::tiny
