// llama.cpp's own test models, one of every architecture: each certified one is cut everywhere it may be and compared bit for bit. They are
// written by `test-llama-archs -o` (scripts/llama-tools) into the cache folder, and this lane says so when they are not there.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/llama/llama_shard_engine.h"
#include "gguf/architecture_table.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gtest/gtest.h"
#include "parity/deepen_model.h"
#include "parity/split_route.h"
#include "tiny/test_folder.h"

namespace meshnet::parity {
namespace {

std::string Folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return (cache && *cache ? cache : std::string(home ? home : "") + "/.cache") + "/meshnet/test-archs";
}

EngineOptions SmallOptions() {
  EngineOptions options;
  options.threads = 1;
  options.sessions_max = 2;
  options.context_tokens = 256;
  options.budget_tokens = 512;
  options.ubatch_tokens = 64;
  return options;
}

const std::vector<uint32_t> kChunks = {17, 1, 1, 40, 1};

// Cuts that were compared.
size_t CompareCuts(const std::string& path, const gguf::ModelFile& file, const gguf::ModelShape& shape) {
  const tiny::TestFolder folder;
  Result<std::unique_ptr<ReferenceContext>> reference = CreateReferenceContext(path, SmallOptions());
  EXPECT_TRUE(reference.ok()) << path << ": " << reference.status().message();
  if (!reference.ok()) return 0;
  size_t compared = 0;
  for (uint32_t cut : gguf::FindLegalCuts(file, shape).cuts) {
    Result<SplitRoute> route = SplitRoute::Create(path, {cut}, SmallOptions(), folder.path());
    if (route.status().code() == StatusCode::kRefused) continue;
    EXPECT_TRUE(route.ok()) << path << " cut " << cut << ": " << route.status().message();
    if (!route.ok()) continue;
    (*reference)->Reset();
    uint64_t seed = 7;
    for (uint32_t chunk : kChunks) {
      const std::vector<Token> tokens = RandomTokens(chunk, shape.vocabulary_size, seed++);
      Result<HiddenState> expected = (*reference)->Decode(tokens);
      Result<EngineOutcome> outcome = route->Run({.sequence = SequenceId(1), .tokens = tokens});
      if (!expected.ok() || !outcome.ok()) {
        ADD_FAILURE() << path << " cut " << cut << ": " << expected.status().message() << outcome.status().message();
        break;
      }
      const auto a = expected->values(), b = outcome->output.values();
      EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) << path << " cut " << cut << " chunk " << chunk;
    }
    ++compared;
  }
  return compared;
}

// As it is, and with eight layers.
void CompareModel(const std::string& path, size_t& models) {
  const tiny::TestFolder folder;
  const std::string deep = folder.File("deep.gguf");
  const Status deepened = DeepenModel(path, 8, deep);
  ASSERT_TRUE(deepened.ok()) << deepened.message();
  size_t compared = 0;
  for (const std::string& candidate : {path, deep}) {
    Result<gguf::ModelFile> file = gguf::ModelFile::Open(candidate);
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
    if (!shape.ok() || !gguf::FindArchitecture(shape->architecture)) return;
    SCOPED_TRACE(path + (candidate == path ? "" : " with eight layers"));
    compared += CompareCuts(candidate, *file, *shape);
  }
  std::printf("%-40s %zu cuts compared\n", std::filesystem::path(path).filename().c_str(), compared);
  std::fflush(stdout);
  models += compared > 0 ? 1 : 0;
}

TEST(TestArchsTest, EveryCertifiedOneIsExactWhereverItMayBeCut) {
  const char* wanted = std::getenv("MESHNET_REAL_MODELS");
  if (!wanted || std::string(wanted) != "1" || !std::filesystem::is_directory(Folder())) {
    GTEST_SKIP() << "set MESHNET_REAL_MODELS=1; how to get the models: scripts/llama-tools, then test-llama-archs -o " << Folder();
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  size_t models = 0;
  for (const std::string& path : paths) CompareModel(path, models);
  EXPECT_GE(models, 8u);
}

}  // namespace
}  // namespace meshnet::parity
