#include "tiny/tiny_tensors.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "gguf/ggml_types.h"

namespace meshnet::tiny {
namespace {

uint64_t NextRandom(uint64_t* state) {  // splitmix64
  uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  return z ^ z >> 31;
}

// The sum of four uniform numbers: close enough to normal, standard deviation 1, and exact in float.
float Draw(uint64_t* state) {
  const uint64_t bits = NextRandom(state);
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(bits >> (16 * i) & 0xffff) - 0x8000;
  return static_cast<float>(sum) * (1.0f / 37837.0f);
}

uint16_t HalfOf(float value) {  // round to nearest even; tiny weights never overflow
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 127 + 15;
  uint32_t mantissa = bits & 0x7fffff;
  if (exponent <= 0) return static_cast<uint16_t>(sign);
  mantissa += 0xfff + (mantissa >> 13 & 1);
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent) << 10) + (mantissa >> 13)));
}

void PutHalf(std::string* out, float value) {
  const uint16_t half = HalfOf(value);
  out->append(reinterpret_cast<const char*>(&half), sizeof(half));
}

void PutQ8Block(std::string* out, const float* values) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 127.0f;
  PutHalf(out, scale);
  for (int i = 0; i < 32; ++i) out->push_back(static_cast<char>(scale == 0 ? 0 : std::lround(values[i] / scale)));
}

}  // namespace

uint32_t GgmlTypeId(WeightType type) {
  switch (type) {
    case WeightType::kF32: return gguf::kTypeF32;
    case WeightType::kF16: return gguf::kTypeF16;
    case WeightType::kQ8_0: return gguf::kTypeQ8_0;
  }
  return gguf::kTypeF32;
}

std::string RandomTensor(const TinyTensor& tensor, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL;
  for (char c : tensor.name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  uint64_t count = 1;
  for (uint64_t dim : tensor.dims) count *= dim;
  std::vector<float> values(count);
  for (float& value : values) value = tensor.centre + tensor.spread * Draw(&state);
  std::string out;
  switch (tensor.type) {
    case WeightType::kF32: out.assign(reinterpret_cast<const char*>(values.data()), count * sizeof(float)); break;
    case WeightType::kF16:
      for (float value : values) PutHalf(&out, value);
      break;
    case WeightType::kQ8_0:
      for (uint64_t i = 0; i + 32 <= count; i += 32) PutQ8Block(&out, &values[i]);
      break;
  }
  return out;
}

}  // namespace meshnet::tiny
