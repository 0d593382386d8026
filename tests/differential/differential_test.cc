// The fake engine and llama.cpp through the same operations, one test for each truncation class and layout of cells: the same decisions, the
// positions llama.cpp reports, and the bits of a fresh context that is fed the tokens that survived (docs/engine.md, L3, L5, L11 and L13).
// Shown able to fail: llama_memory_seq_rm skipped in LlamaSequenceCells::CutTo (Full, seed 3), ScrubNonFinite skipped (WholeHybrid, seed 3).
// MESHNET_DIFFERENTIAL_LISTS=N runs N lists of each world, MESHNET_DIFFERENTIAL_SEED=S begins at seed S.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "differential/bed.h"
#include "differential/operations.h"
#include "gtest/gtest.h"
#include "model/run_in_child.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::differential {
namespace {

constexpr size_t kOperations = 200;  // of one list

uint64_t Setting(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : usual;
}

struct Ran {
  std::string problem;  // empty when all was well
  Tally tally;
};

Ran RunList(const World& world, const std::string& model_path, const std::vector<Operation>& operations) {
  const ChildRun child = RunInChild([&](const Say& say) {
    Bed bed(world, model_path);
    for (const Operation& operation : operations) {
      const std::string problem = bed.Do(operation);
      if (problem.empty()) continue;
      say(problem);
      return 1;
    }
    std::string text;
    for (const auto& [name, count] : bed.TakeTally()) text += std::to_string(count) + " " + name + "\n";
    say(text);
    return 0;
  });
  Ran ran;
  if (!child.well) {
    ran.problem = ProblemOf(child);
    return ran;
  }
  std::istringstream lines(child.output);
  std::string name;
  for (uint64_t count; lines >> count && std::getline(lines >> std::ws, name);) ran.tally[name] += count;
  return ran;
}

// Many random lists in one world. `met` is what must have happened at least once, or the lists say little.
void Compare(const World& world, uint64_t lists_usual, const std::vector<std::string>& met) {
  const tiny::TestFolder folder;
  const std::string path = folder.File("model.gguf");
  tiny::TinyModelOptions model;
  model.architecture = world.architecture;
  model.layers = world.layers;
  model.window = world.window_tokens;
  model.weights = world.weights;
  ASSERT_TRUE(tiny::WriteTinyModel(model, path).ok());
  ASSERT_TRUE(PoisonToken(path).ok());
  const uint64_t lists = Setting("MESHNET_DIFFERENTIAL_LISTS", lists_usual);
  const uint64_t first = Setting("MESHNET_DIFFERENTIAL_SEED", 1);
  Tally tally;
  for (uint64_t seed = first; seed < first + lists; ++seed) {
    const std::vector<Operation> operations = RandomOperations(seed, kOperations, world.scope());
    Ran ran = RunList(world, path, operations);
    for (const auto& [name, count] : ran.tally) tally[name] += count;
    if (ran.problem.empty()) continue;
    // With the same words in front, or a list might shrink to another failure.
    const std::string kind = ran.problem.substr(0, 24);
    const auto fails = [&](const std::vector<Operation>& fewer) { return RunList(world, path, fewer).problem.starts_with(kind); };
    const std::vector<Operation> shortest = Shrink(operations, fails);
    FAIL() << "seed " << seed << ": " << ran.problem << "\nthe shortest list that fails, with " << RunList(world, path, shortest).problem << ":\n"
           << TextOf(shortest);
  }
  for (const auto& [name, count] : tally) std::printf("%10llu %s\n", static_cast<unsigned long long>(count), name.c_str());
  if (lists < lists_usual) return;
  for (const std::string& name : met) EXPECT_GT(tally[name], 0u) << name << " was never met";
}

std::vector<std::string> Usual(std::vector<std::string> also) {
  for (const char* name : {"steps compared with a fresh context", "engine calls of several sessions", "replays", "steps that went back", "sessions lost",
                           "computations broken off", "evicted: lru", "evicted: ttl", "superseded", "rows of free cells filled",
                           "step refused: epoch-stale", "step refused: cancelled", "step refused: exec-failed", "step refused: cache-miss/lost",
                           "step refused: cache-miss/past-mismatch", "step refused: cache-miss/digest-mismatch", "step refused: step-conflict",
                           "step refused: context-exceeded", "step refused: credit-exceeded", "step refused: deadline-exceeded", "open refused: capacity"}) {
    also.push_back(name);
  }
  return also;
}

TEST(DifferentialTest, Full) { Compare({}, 20, Usual({"truncations in the engine", "lane exchanges"})); }

// In mode exact each session has cells of its own, whatever the budget.
TEST(DifferentialTest, FullWithASmallBudget) {
  World world;
  world.settings = {.sessions_max = 6, .context_tokens = 64, .budget_tokens = 200, .ttl_seconds = 1};
  world.cells = 200;
  world.kv_type = "q8_0";
  Compare(world, 10, {"steps compared with a fresh context", "truncations in the engine"});
}

// Where the order of sums depends on which cells are free: fast, in f32.
World InAnyOrder(World world) {
  world.numerics = NumericsMode::kFast;
  world.weights = tiny::WeightType::kF32;
  world.kv_type = "f32";
  world.tolerance = 5e-3f;
  return world;
}

TEST(DifferentialTest, FullInOnePool) {
  World world = InAnyOrder({});
  world.settings = {.sessions_max = 6, .context_tokens = 64, .budget_tokens = 200, .ttl_seconds = 1};
  world.cells = 200;
  Compare(world, 12, Usual({"truncations in the engine"}));
}

World Windowed() {
  World world;
  world.architecture = "gemma3";
  world.layers = 6;
  world.settings = {.sessions_max = 3, .context_tokens = 500, .budget_tokens = 1200, .ttl_seconds = 1};
  world.cells = 1500;
  world.window_tokens = 96;  // with one micro-batch more still one ring of 256 cells
  world.chunk_rows_max = 96;
  world.clients = 4;
  return world;
}

// In mode exact what breaks off costs the session, so no step is rolled back here.
TEST(DifferentialTest, Window) {
  std::vector<std::string> met = Usual({"truncations in the engine", "windows recycled"});
  std::erase(met, "step refused: exec-failed");
  Compare(Windowed(), 10, met);
}

// In mode fast a window is cut after it was recycled, while it is whole.
TEST(DifferentialTest, WindowInAnyOrder) {
  Compare(InAnyOrder(Windowed()), 8, Usual({"truncations in the engine", "windows recycled"}));
}

TEST(DifferentialTest, WindowsInOnePool) {
  World world = InAnyOrder(Windowed());
  world.settings = {.sessions_max = 4, .context_tokens = 300, .budget_tokens = 700, .ttl_seconds = 1};
  world.cells = 700;
  world.window_tokens = 16;
  world.chunk_rows_max = 64;
  world.clients = 5;
  world.shared_windows = true;
  Compare(world, 10, Usual({"truncations in the engine"}));
}

// No certified architecture is recurrent; these run whole. Mode exact does not cover their f32 matrices, so shapes are kept the same.
World Whole(const char* architecture) {
  World world;
  world.architecture = architecture;
  world.numerics = NumericsMode::kFast;
  return world;
}

TEST(DifferentialTest, WholeRecurrent) { Compare(Whole("mamba"), 8, Usual({"step refused: truncate-unsupported"})); }
TEST(DifferentialTest, WholeHybrid) { Compare(Whole("jamba"), 8, Usual({"step refused: truncate-unsupported"})); }

}  // namespace
}  // namespace meshnet::differential
