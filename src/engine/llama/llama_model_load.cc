#include "engine/llama/llama_model_load.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <vector>

#include "engine/llama/llama_library.h"
#include "ggml-backend.h"

namespace meshnet {
namespace {

// Null-terminated, as llama.cpp takes them; empty stands for its default.
Result<std::vector<ggml_backend_dev_t>> DevicesByName(const std::string& names) {
  std::vector<ggml_backend_dev_t> devices;
  if (names.empty()) return devices;
  for (size_t begin = 0; names != "none" && begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
    if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
      return BadConfiguration("--device " + name + " is not a device that this build of llama.cpp can offload to");
    }
    devices.push_back(device);
    begin = end + 1;
  }
  devices.push_back(nullptr);
  return devices;
}

ggml_type KvType(const std::string& name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* type_name = ggml_type_name(static_cast<ggml_type>(type));
    if (type_name && name == type_name) return static_cast<ggml_type>(type);
  }
  return GGML_TYPE_F16;  // ResolveSettings lets only known names through
}

std::string WithComplaint(std::string message) {
  const std::string complaint = TakeLlamaComplaint();
  return complaint.empty() ? message : message + " (llama.cpp: " + complaint + ")";
}

}  // namespace

Result<LlamaModelPtr> LoadLlamaModel(const std::string& path, const EngineSettings& settings) {
  UseLlamaLibrary();
  Result<std::vector<ggml_backend_dev_t>> devices = DevicesByName(settings.device);
  if (!devices.ok()) return devices.status();
  llama_model_params params = llama_model_default_params();
  if (!devices->empty()) params.devices = devices->data();
  params.n_gpu_layers = settings.gpu_layers;
  params.load_mode = settings.gpu_layers == 0 ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_AUTO;
  params.use_extra_bufts = settings.repack;
  params.load_mtp = false;
  TakeLlamaComplaint();
  LlamaModelPtr model;
  try {
    model.reset(llama_model_load_from_file(path.c_str(), params));
  } catch (const std::bad_alloc&) {
    return OutOfMemory("there is not enough memory to load " + path);
  } catch (const std::exception& error) {
    return BadModel("llama.cpp cannot load " + path + ": " + error.what());
  }
  if (!model) return BadModel(WithComplaint("llama.cpp cannot load " + path));
  return model;
}

void ReleaseMappedPages(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    unsigned major_number = 0, minor_number = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %x:%x %lu", &begin, &end, mode, &major_number, &minor_number, &inode) != 6) continue;
    if (inode != file.st_ino || makedev(major_number, minor_number) != file.st_dev || mode[1] == 'w') continue;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

Result<LlamaContextPtr> CreateLlamaContext(llama_model* model, const EngineSettings& settings, const ContextCallbacks& callbacks) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = settings.cells;
  params.n_batch = settings.batch_tokens;
  params.n_ubatch = settings.ubatch_rows;
  params.n_seq_max = settings.sessions;
  params.n_outputs_max = settings.output_rows;
  params.kv_unified = !settings.partitioned;
  params.n_threads = static_cast<int32_t>(settings.threads);
  params.n_threads_batch = static_cast<int32_t>(settings.threads);
  params.flash_attn_type = settings.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = KvType(settings.kv_type_k);
  params.type_v = KvType(settings.kv_type_v);
  params.pooling_type = LLAMA_POOLING_TYPE_NONE;
  params.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL;
  params.swa_full = false;
  params.no_perf = true;
  params.cb_eval = callbacks.on_tensor;
  params.cb_eval_user_data = callbacks.on_tensor_data;
  params.abort_callback = callbacks.abort;
  params.abort_callback_data = callbacks.abort_data;
  TakeLlamaComplaint();
  LlamaContextPtr context;
  try {
    context.reset(llama_init_from_model(model, params));
  } catch (const std::exception&) {
    context.reset();
  }
  if (!context) {
    return OutOfMemory(WithComplaint("llama.cpp cannot make a context of " + std::to_string(settings.cells) + " cells for " +
                                     std::to_string(settings.sessions) + " sessions; lower the budget, the context or the sessions"));
  }
  return context;
}

}  // namespace meshnet
