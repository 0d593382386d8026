// llama.cpp's own test models, one of every architecture: each certified one is cut in two everywhere it may be, and in three, and compared bit
// for bit; what is refused is counted and named. They are written by `test-llama-archs -o` (scripts/llama-tools) into the cache folder, and this
// lane says so when they are not there.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
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

// What was done with one architecture, over all its models.
struct Tally {
  size_t models = 0;
  size_t compared = 0;              // cuts, and every logit of each
  std::vector<std::string> refused; // "MODEL cut 3: why"
};

// One model and its reference, as it is or deepened.
class ModelUnderTest {
 public:
  ModelUnderTest(std::string name, const std::string& path, Tally& tally) : name_(std::move(name)), path_(path), tally_(tally) {}

  void CompareAll() {
    Result<gguf::ModelFile> file = gguf::ModelFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    const gguf::LegalCuts legal = gguf::FindLegalCuts(*file, *shape);
    vocabulary_ = shape->vocabulary_size;
    // A border that is not legal is refused by the plan; what is legal as a border may still be refused for the range it makes.
    for (uint32_t cut = 1; cut < shape->layer_count; ++cut) {
      if (std::find(legal.cuts.begin(), legal.cuts.end(), cut) == legal.cuts.end()) Refuse({cut}, legal.reason);
    }
    if (legal.cuts.empty()) return;
    Result<std::unique_ptr<ReferenceContext>> reference = CreateReferenceContext(path_, SmallOptions());
    ASSERT_TRUE(reference.ok()) << name_ << ": " << reference.status().message();
    reference_ = std::move(*reference);
    for (uint32_t cut : legal.cuts) Compare({cut});
    const size_t count = legal.cuts.size();
    if (count < 2) return;
    Compare({legal.cuts.front(), legal.cuts.back()});
    if (count > 3) Compare({legal.cuts[count / 3], legal.cuts[2 * count / 3]});
  }

 private:
  static std::string Text(const std::vector<uint32_t>& cuts) {
    std::string text;
    for (uint32_t cut : cuts) text += (text.empty() ? "" : ",") + std::to_string(cut);
    return text;
  }

  void Refuse(const std::vector<uint32_t>& cuts, const std::string& why) {
    EXPECT_FALSE(why.empty()) << name_ << " cut " << Text(cuts) << " is refused without a reason";
    tally_.refused.push_back(name_ + " cut " + Text(cuts) + ": " + why);
  }

  void Compare(const std::vector<uint32_t>& cuts) {
    Result<SplitRoute> route = SplitRoute::Create(path_, cuts, SmallOptions(), folder_.path());
    if (route.status().code() == StatusCode::kRefused) return Refuse(cuts, route.status().message());
    ASSERT_TRUE(route.ok()) << name_ << " cut " << Text(cuts) << ": " << route.status().message();
    reference_->Reset();
    uint64_t seed = 7;
    for (uint32_t chunk : kChunks) {
      const std::vector<Token> tokens = RandomTokens(chunk, vocabulary_, seed++);
      Result<HiddenState> expected = reference_->Decode(tokens);
      ASSERT_TRUE(expected.ok()) << name_ << ": " << expected.status().message();
      Result<EngineOutcome> outcome = route->Run({.sequence = SequenceId(1), .tokens = tokens});
      ASSERT_TRUE(outcome.ok()) << name_ << " cut " << Text(cuts) << ": " << outcome.status().message();
      const auto a = expected->values(), b = outcome->output.values();
      EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) << name_ << " cut " << Text(cuts) << " chunk " << chunk;
    }
    ++tally_.compared;
  }

  const std::string name_;
  const std::string path_;
  Tally& tally_;
  const tiny::TestFolder folder_;
  std::unique_ptr<ReferenceContext> reference_;
  uint32_t vocabulary_ = 0;
};

std::string ArchitectureOf(const std::string& path) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? file->String("general.architecture", "") : "";
}

// As it is, and with eight layers: two have one place to cut.
void CompareModel(const std::string& path, Tally& tally) {
  const std::string name = std::filesystem::path(path).stem().string();
  ModelUnderTest(name, path, tally).CompareAll();
  const tiny::TestFolder folder;
  const std::string deep = folder.File("deep.gguf");
  const Status deepened = DeepenModel(path, 8, deep);
  ASSERT_TRUE(deepened.ok()) << deepened.message();
  ModelUnderTest(name + " with eight layers", deep, tally).CompareAll();
  ++tally.models;
}

TEST(TestArchsTest, EveryCertifiedOneIsExactWhereverItMayBeCut) {
  const char* wanted = std::getenv("MESHNET_REAL_MODELS");
  if (!wanted || std::string(wanted) != "1" || !std::filesystem::is_directory(Folder())) {
    GTEST_SKIP() << "set MESHNET_REAL_MODELS=1; how to get the models: docs/testing.md (scripts/llama-tools test-llama-archs, which writes them to "
                 << Folder() << ")";
  }
  std::map<std::string, Tally> tallies;
  for (const gguf::ArchitectureRule& rule : gguf::CertifiedArchitectures()) tallies[std::string(rule.name)];
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  const tiny::TestFolder cache;  // digests of models that are gone tomorrow
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  size_t others = 0;
  for (const std::string& path : paths) {
    const auto tally = tallies.find(ArchitectureOf(path));
    if (tally == tallies.end()) {
      ++others;
    } else {
      CompareModel(path, tally->second);
    }
  }
  Tally all;
  for (const auto& [architecture, tally] : tallies) {
    EXPECT_GT(tally.compared, 0u) << architecture << " is certified, but no cut of it was compared: " << tally.models << " models of it are in " << Folder();
    std::printf("%-14s %zu models, %zu cuts equal, %zu refused\n", architecture.c_str(), tally.models, tally.compared, tally.refused.size());
    for (const std::string& refused : tally.refused) std::printf("    refused: %s\n", refused.c_str());
    all.models += tally.models;
    all.compared += tally.compared;
    all.refused.insert(all.refused.end(), tally.refused.begin(), tally.refused.end());
  }
  std::printf("%zu certified architectures, %zu models, %zu cuts compared bit for bit, %zu refused by name; %zu models of other architectures are not cut\n",
              tallies.size(), all.models, all.compared, all.refused.size(), others);
}

}  // namespace
}  // namespace meshnet::parity
