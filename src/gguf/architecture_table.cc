#include "gguf/architecture_table.h"

#include <algorithm>

namespace meshnet::gguf {
namespace {

constexpr uint32_t kGemma3Lengths[] = {62};  // 27B: another attention scale, which no key can express

constexpr uint32_t kExaone4Lengths[] = {64};  // 32B: windows, and layers without RoPE

// A row without more than a name: nothing in the code asks for the layer's index or count.
constexpr ArchitectureRule kRules[] = {
    {.name = "arcee"},
    {.name = "arctic"},
    {.name = "bailingmoe", .output_demanded = true},
    {.name = "bailingmoe2", .output_demanded = true},
    {.name = "chatglm"},
    {.name = "codeshell", .output_demanded = true},
    {.name = "cohere2", .window = WindowRule::kPattern, .window_period = 4},
    {.name = "command-r", .layers_max = 63},
    {.name = "dbrx", .output_demanded = true},
    {.name = "deepseek"},
    {.name = "deepseek2", .quirk = Quirk::kDeepseek2Lite},
    {.name = "dots1", .output_demanded = true},
    {.name = "ernie4_5"},
    {.name = "exaone"},
    {.name = "exaone4", .special_lengths = kExaone4Lengths},
    {.name = "falcon"},
    {.name = "gemma3", .window = WindowRule::kPattern, .window_period = 6, .windowless = WindowlessRange::kZeroWindow,
     .special_lengths = kGemma3Lengths},
    {.name = "gpt-oss", .window = WindowRule::kPattern, .window_period = 2, .output_demanded = true},
    {.name = "gpt2"},
    {.name = "gptneox", .output_demanded = true},
    {.name = "granite"},
    {.name = "granitemoe"},
    {.name = "grok", .scales_embedding = true},
    {.name = "hunyuan-moe"},
    {.name = "internlm2", .output_demanded = true},
    {.name = "jais", .output_demanded = true},
    {.name = "jais2"},
    {.name = "llama"},
    {.name = "maincoder"},
    {.name = "mellum", .window = WindowRule::kPattern, .window_period = 4, .windowless = WindowlessRange::kZeroWindow, .output_demanded = true},
    {.name = "minicpm", .scales_embedding = true, .quirk = Quirk::kMinicpmScale},
    {.name = "minimax-m2", .output_demanded = true},
    {.name = "mistral3"},
    {.name = "mistral4", .quirk = Quirk::kDeepseek2Lite},  // loads with deepseek2's code
    {.name = "mpt"},
    {.name = "nemotron", .output_demanded = true},
    {.name = "olmo"},
    {.name = "olmo2", .window = WindowRule::kPattern, .window_period = 4, .windowless = WindowlessRange::kZeroWindow, .output_demanded = true},
    {.name = "olmoe", .output_demanded = true},
    {.name = "orion", .output_demanded = true},
    {.name = "phi2", .output_demanded = true},
    {.name = "phi3"},
    {.name = "phimoe", .output_demanded = true},
    {.name = "plamo", .output_demanded = true},
    {.name = "qwen", .output_demanded = true},
    {.name = "qwen2"},
    {.name = "qwen2moe", .output_demanded = true},
    {.name = "qwen2vl", .positions_per_token = 4},
    {.name = "qwen3"},
    {.name = "qwen3moe"},
    {.name = "refact"},
    {.name = "seed_oss"},
    {.name = "smollm3", .cut_step = 4},  // every fourth layer has no RoPE
    {.name = "stablelm", .output_demanded = true},
    {.name = "starcoder"},
    {.name = "starcoder2"},
    {.name = "xverse", .output_demanded = true},
};

struct Refusal {
  std::string_view name;
  std::string_view reason;
};
constexpr Refusal kRefusals[] = {
    {"gemma3n", "more than the hidden state crosses its layers"},
    {"gemma4", "more than the hidden state crosses its layers"},
    {"deepseek4", "more than the hidden state crosses its layers"},
    {"rwkv7", "more than the hidden state crosses its layers"},
    {"qwen4exp", "more than the hidden state crosses its layers"},
    {"baichuan", "its behaviour depends on the number of layers"},
    {"minimax-01", "it computes with the number of layers"},
    {"minicpm3", "it computes with the number of layers"},
    {"hrm-text", "it computes with the number of layers"},
    {"kimi-k3", "it computes with the number of layers"},
};

// Read by the pinned code with get_key_or_arr or get_arr over layers; the names stand behind "ARCH.".
constexpr std::string_view kPerLayerKeys[] = {
    "attention.head_count",        "attention.head_count_kv", "feed_forward_length",
    "expert_feed_forward_length",  "expert_used_count",       "attention.sliding_window_pattern",
    "attention.recurrent_layers",  "attention.rope_pattern",  "attention.compress_ratios",
    "attention.indexer.types",     "swiglu_clamp_exp",        "swiglu_clamp_shexp",
};
// The same, without the architecture before them.
constexpr std::string_view kBarePerLayerKeys[] = {"xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"};
constexpr std::string_view kModelWideArrays[] = {"rope.dimension_sections", "classifier.output_labels"};
// Says which layers get image features; with -1 everywhere it says that none does, whatever its length.
constexpr std::string_view kDeepstackKey = "deepstack_mapping";

std::string_view Suffix(std::string_view key, std::string_view architecture) {
  if (key.size() <= architecture.size() || !key.starts_with(architecture) || key[architecture.size()] != '.') return {};
  return key.substr(architecture.size() + 1);
}

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

const ArchitectureRule* FindArchitecture(std::string_view name) {
  for (const ArchitectureRule& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

std::span<const ArchitectureRule> CertifiedArchitectures() { return kRules; }

std::string RefusalReason(std::string_view name) {
  for (const Refusal& refusal : kRefusals) {
    if (refusal.name == name) return std::string(refusal.reason);
  }
  return "no cut of it has been certified bit-exact";
}

std::string BoundaryTensor(const ArchitectureRule& rule, uint32_t layer) { return std::string(rule.boundary) + "-" + std::to_string(layer); }

bool IsPerLayerKey(std::string_view key, std::string_view architecture) {
  return Contains(kPerLayerKeys, Suffix(key, architecture)) || Contains(kBarePerLayerKeys, key);
}

bool IsDeepstackMapping(std::string_view key, std::string_view architecture) { return Suffix(key, architecture) == kDeepstackKey; }

bool IsModelWideArray(std::string_view key, std::string_view architecture) { return Contains(kModelWideArrays, Suffix(key, architecture)); }

}  // namespace meshnet::gguf
