// Random tensor data in the types tiny models use. Deterministic: only integer arithmetic and exact float operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiny/tiny_model.h"

namespace meshnet::tiny {

// `spread` is the width of the distribution, `centre` its middle.
struct TinyTensor {
  std::string name;
  std::vector<uint64_t> dims;
  WeightType type = WeightType::kF32;
  float spread = 1.0f;
  float centre = 0.0f;
};

uint32_t GgmlTypeId(WeightType type);
// The data of a tensor, as it lies in the file.
std::string RandomTensor(const TinyTensor& tensor, uint64_t seed);

}  // namespace meshnet::tiny
