// Bytes as a GGUF file: the header parser, the model shape and the cut plan must refuse or accept, never crash, hang or take more memory than the
// file justifies.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("gguf", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) return -1;
  auto model = meshnet::gguf::ModelFile::Open(path);
  if (!model.ok()) return 0;
  auto shape = meshnet::gguf::ReadModelShape(*model);
  if (!shape.ok()) return 0;
  meshnet::gguf::LegalCuts cuts = meshnet::gguf::FindLegalCuts(*model, *shape);
  if (!cuts.cuts.empty()) {
    (void)meshnet::gguf::PlanShard(*model, *shape, {0, cuts.cuts.front()}).ok();
    (void)meshnet::gguf::PlanShard(*model, *shape, {cuts.cuts.front(), shape->layer_count}).ok();
  }
  return 0;
}
