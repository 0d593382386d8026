// Our reading of GGUF against the pinned llama.cpp's own: the type table, and who accepts which header.
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "gguf/ggml_types.h"
#include "gguf/model_file.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::tiny {
namespace {

TEST(PinnedFormatTest, TypeTableIsTheirs) {
  for (int id = 0; id < GGML_TYPE_COUNT; ++id) {
    const auto type = static_cast<ggml_type>(id);
    const gguf::GgmlType* ours = gguf::FindGgmlType(static_cast<uint32_t>(id));
    if (ggml_blck_size(type) == 0) {
      EXPECT_EQ(ours, nullptr) << id;
      continue;
    }
    ASSERT_NE(ours, nullptr) << id;
    EXPECT_STREQ(ours->name, ggml_type_name(type));
    EXPECT_EQ(ours->block_elements, ggml_blck_size(type)) << ours->name;
    EXPECT_EQ(ours->block_bytes, ggml_type_size(type)) << ours->name;
  }
  EXPECT_EQ(gguf::FindGgmlType(static_cast<uint32_t>(GGML_TYPE_COUNT)), nullptr);
}

bool TheyAccept(const std::string& path) {
  gguf_context* context = gguf_init_from_file(path.c_str(), gguf_init_params{true, nullptr});
  if (context == nullptr) return false;
  gguf_free(context);
  return true;
}

// What passes our parser must load there: a header that only we like would fail later and less clearly.
TEST(PinnedFormatTest, WhatWeAcceptTheyAccept) {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  TestFolder folder;
  TinyModelOptions options;
  options.layers = 1;
  options.vocabulary = 32;
  const std::string model = folder.File("model.gguf"), mutant = folder.File("mutant.gguf");
  ASSERT_TRUE(WriteTinyModel(options, model).ok());
  ASSERT_TRUE(TheyAccept(model));
  const std::string bytes = TestFolder::Read(model);
  const uint64_t header = gguf::ModelFile::Open(model)->tensors()[0].offset;
  uint64_t accepted = 0;
  uint32_t random = 1;
  for (uint64_t at = 0; at < header; ++at) {
    random = random * 1664525u + 1013904223u;
    std::string changed = bytes;
    changed[at] = static_cast<char>(random >> 24);
    TestFolder::Write(mutant, changed);
    if (!gguf::ModelFile::Open(mutant).ok()) continue;
    ++accepted;
    EXPECT_TRUE(TheyAccept(mutant)) << "byte " << at << " = " << (random >> 24);
  }
  EXPECT_GT(accepted, 100u);  // names and values may change; the structure may not
}

}  // namespace
}  // namespace meshnet::tiny
