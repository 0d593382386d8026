#include "engine/llama/numerics.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "engine/llama/llama_library.h"
#include "ggml-backend.h"
#include "gguf/ggml_types.h"

namespace meshnet {
namespace {

// Measured bit-equal over threads, chunk sizes, neighbours and replay with flash attention on and no repacking, on an AVX2 machine. f32, f16, bf16 and
// iq4_nl are not: llama.cpp's tiny matrix kernels add up in another order as soon as a call has several rows. iq4_xs and iq3_s differ too.
constexpr std::array<std::string_view, 12> kExactTypes = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "tq1_0", "tq2_0"};

std::string CpuFeatures() {
  ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
  if (!cpu) return {};
  const auto features_of = reinterpret_cast<ggml_backend_get_features_t>(ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features"));
  if (!features_of) return {};
  std::set<std::string> names;
  for (const ggml_backend_feature* feature = features_of(cpu); feature->name; ++feature) {
    names.insert(std::string(feature->name) == "REPACK" || std::string_view(feature->value) == "1" ? feature->name
                                                                                                    : std::string(feature->name) + "=" + feature->value);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::string BackendNames(const EngineSettings& settings) {
  std::string names = "CPU";
  if (settings.gpu_layers == 0 || settings.device == "none") return names;
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) continue;
    names += std::string("+") + ggml_backend_dev_name(device);
  }
  return names;
}

}  // namespace

Status CheckExactWeights(std::span<const gguf::TensorInfo> tensors, std::span<const std::string> holes) {
  for (const gguf::TensorInfo& tensor : tensors) {
    const auto matrix_dims = std::count_if(tensor.dims.begin(), tensor.dims.end(), [](uint64_t dim) { return dim > 1; });
    if (matrix_dims < 2 || std::find(holes.begin(), holes.end(), tensor.name) != holes.end()) continue;
    const gguf::GgmlType* type = gguf::FindGgmlType(tensor.type);
    const std::string_view name = type ? type->name : "unknown";
    if (std::find(kExactTypes.begin(), kExactTypes.end(), name) != kExactTypes.end()) continue;
    return Refused("numerics mode exact does not cover weights of type " + std::string(name) + " (tensor " + tensor.name +
                   "): use --numerics fast, or a model quantised to q8_0, q6_K, q5_K, q4_K, q5_1, q5_0, q4_1 or q4_0");
  }
  return OkStatus();
}

NumericsFingerprint FingerprintOf(const EngineSettings& settings, uint32_t context_tokens) {
  UseLlamaLibrary();
  NumericsFingerprint fingerprint;
  fingerprint.mode = settings.numerics;
  fingerprint.engine_tree = MESHNET_LLAMA_TREE;
  fingerprint.backend = BackendNames(settings);
  fingerprint.cpu_features = CpuFeatures();
  fingerprint.flash_attention = settings.flash_attention;
  fingerprint.repack = settings.repack;
  fingerprint.kv_type_k = settings.kv_type_k;
  fingerprint.kv_type_v = settings.kv_type_v;
  fingerprint.threads = settings.threads;
  fingerprint.context_tokens = context_tokens;
  return fingerprint;
}

}  // namespace meshnet
