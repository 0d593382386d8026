#include "gguf/ggml_types.h"

#include <limits>

namespace meshnet::gguf {
namespace {

// Ids 4, 5, 31-33 and 36-38 were removed from the format and stock code refuses them.
constexpr GgmlType kTypes[] = {
    {0, "f32", 1, 4},        {1, "f16", 1, 2},        {2, "q4_0", 32, 18},     {3, "q4_1", 32, 20},     {6, "q5_0", 32, 22},
    {7, "q5_1", 32, 24},     {8, "q8_0", 32, 34},     {9, "q8_1", 32, 36},     {10, "q2_K", 256, 84},   {11, "q3_K", 256, 110},
    {12, "q4_K", 256, 144},  {13, "q5_K", 256, 176},  {14, "q6_K", 256, 210},  {15, "q8_K", 256, 292},  {16, "iq2_xxs", 256, 66},
    {17, "iq2_xs", 256, 74}, {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50}, {20, "iq4_nl", 32, 18},  {21, "iq3_s", 256, 110},
    {22, "iq2_s", 256, 82},  {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},       {25, "i16", 1, 2},       {26, "i32", 1, 4},
    {27, "i64", 1, 8},       {28, "f64", 1, 8},       {29, "iq1_m", 256, 56},  {30, "bf16", 1, 2},      {34, "tq1_0", 256, 54},
    {35, "tq2_0", 256, 66},  {39, "mxfp4", 32, 17},   {40, "nvfp4", 64, 36},   {41, "q1_0", 128, 18},   {42, "q2_0", 64, 18},
};

bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product) && *product <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

const GgmlType* FindGgmlType(std::string_view name) {
  for (const GgmlType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::optional<uint64_t> TensorBytes(const GgmlType& type, std::span<const uint64_t> dims) {
  if (dims.empty() || dims[0] == 0 || dims[0] % type.block_elements != 0) return std::nullopt;
  uint64_t bytes = 0;
  // The element count must fit as well: stock code computes it in signed 64 bits.
  uint64_t elements = dims[0];
  if (!Multiply(dims[0] / type.block_elements, type.block_bytes, &bytes)) return std::nullopt;
  for (uint64_t dim : dims.subspan(1)) {
    if (dim == 0 || !Multiply(bytes, dim, &bytes) || !Multiply(elements, dim, &elements)) return std::nullopt;
  }
  return bytes;
}

}  // namespace meshnet::gguf
