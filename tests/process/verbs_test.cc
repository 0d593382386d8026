// cut, inspect, verify, bench, certificates: what they print and leave behind.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <set>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class VerbsTest : public ProcessBed {
 protected:
  json Json(const std::vector<std::string>& arguments, int code = 0) {
    Finished finished = Meshnet(arguments);
    EXPECT_EQ(finished.code, code) << arguments[0] << ": " << finished.err;
    json parsed = json::parse(finished.out, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << finished.out;
    return parsed.is_object() ? parsed : json::object();
  }
  std::vector<std::string> Keys(const json& object) {
    std::vector<std::string> keys;
    for (const auto& item : object.items()) keys.push_back(item.key());
    return keys;
  }
};

TEST_F(VerbsTest, InspectSaysWhatTheContractSays) {
  json model = Json({"inspect", PlainModel(), "--json"});
  EXPECT_THAT(Keys(model), testing::UnorderedElementsAre("architecture", "layers", "parameters", "tied", "files", "bytes", "bytes_per_layer", "boundary_width",
                                                         "truncation_class", "cuts", "prediction_layers", "model_root", "shard"));
  EXPECT_EQ(model["architecture"], "llama");
  EXPECT_EQ(model["layers"], 4);
  EXPECT_EQ(model["bytes_per_layer"].size(), 4u);
  EXPECT_EQ(model["cuts"]["legal"], json({1, 2, 3}));
  EXPECT_EQ(model["files"], json({PlainModel()}));
  EXPECT_EQ(model["bytes"], std::filesystem::file_size(PlainModel()));
  EXPECT_EQ(model["model_root"].get<std::string>().size(), 64u);
  EXPECT_EQ(model["shard"], nullptr);
}

TEST_F(VerbsTest, ShardsTileTheModelAndKnowIt) {
  json cut = Json({"cut", PlainModel(), "--cuts", "1,3", "-o", Path("out"), "--json"});
  ASSERT_EQ(cut["shards"].size(), 3u);
  json model = Json({"inspect", PlainModel(), "--json"});
  EXPECT_EQ(cut["model_root"], model["model_root"]);
  std::vector<json> ranges;
  for (const json& shard : cut["shards"]) {
    EXPECT_THAT(Keys(shard), testing::UnorderedElementsAre("layers", "file", "bytes", "tensors", "hole_bytes"));
    std::string file = shard["file"];
    EXPECT_EQ(shard["bytes"], std::filesystem::file_size(file));
    json inspected = Json({"inspect", file, "--json"});
    EXPECT_EQ(inspected["model_root"], model["model_root"]);
    EXPECT_EQ(inspected["shard"]["layers"], shard["layers"]);
    EXPECT_EQ(inspected["layers"], 4);
    EXPECT_EQ(inspected["cuts"]["legal"], json::array());
    ranges.push_back(shard["layers"]);
  }
  EXPECT_THAT(ranges, ElementsAre(json({0, 1}), json({1, 3}), json({3, 4})));
  EXPECT_TRUE(std::filesystem::exists(Path("out/plain-1-3.gguf"))) << "README's names";
}

TEST_F(VerbsTest, ADryRunWritesNothing) {
  Finished finished = Meshnet({"cut", PlainModel(), "--shards", "2", "-o", Path("out"), "--dry-run", "-c", "512"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("hole"), HasSubstr("512 tokens")));
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
  EXPECT_EQ(Json({"cut", PlainModel(), "--shards", "2", "-o", Path("out"), "--dry-run", "--json"})["shards"].size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(VerbsTest, TheBudgetIsExplainedBeforeAnythingIsCutOrLoaded) {
  const std::vector<std::string> explain = {"worker", "--model", PlainModel(), "--layers", "0:2", "-c", "300", "--explain-budget"};
  StartOptions options = Options();
  options.environment["MESHNET_HOT_KV_MAX_SESSIONS"] = "4";
  const std::string memory = "100000000";  // what the machine has moves from call to call
  options.environment["MESHNET_MEMORY_LIMIT_BYTES"] = memory;
  Finished own = Meshnet(explain, options);
  EXPECT_EQ(own.code, 0) << own.err;
  // 300 tokens are two of llama.cpp's 256 cells.
  EXPECT_THAT(own.out, testing::AllOf(HasSubstr("layers [0,2) of"), HasSubstr("4 x 300 = 1200 tokens fit the budget: 512 of its own"), HasSubstr("2048"),
                                      HasSubstr("It fits into memory.")));
  options.environment["MESHNET_HOT_KV_BUDGET_TOKENS"] = "600";
  EXPECT_THAT(Meshnet(explain, options).out, testing::AllOf(HasSubstr("are more than the budget: one pool"), HasSubstr("768")));
  options.environment["MESHNET_HOT_KV_BUDGET_TOKENS"] = "200";
  Finished refused = Meshnet(explain, options);
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("MESHNET_HOT_KV_BUDGET_TOKENS"), HasSubstr("300")));
  options.environment["MESHNET_HOT_KV_BUDGET_TOKENS"] = "1200";
  options.environment["MESHNET_MEMORY_LIMIT_BYTES"] = "1000000";
  Finished large = Meshnet(explain, options);
  EXPECT_EQ(large.code, 6);
  EXPECT_THAT(large.out, HasSubstr("It does not fit into memory."));
  EXPECT_FALSE(std::filesystem::exists(options.environment["XDG_CACHE_HOME"] + "/meshnet/shards")) << "nothing was cut";

  const std::string shard = Path("shard.gguf");
  ASSERT_EQ(Meshnet({"cut", PlainModel(), "--layers", "0:2", "-o", shard}).code, 0);
  StartOptions only_memory = Options();
  only_memory.environment["MESHNET_MEMORY_LIMIT_BYTES"] = memory;
  Finished of_shard = Meshnet({"worker", "--shard", shard, "-c", "300", "--hot-kv-max-sessions", "4", "--explain-budget"}, only_memory);
  EXPECT_EQ(of_shard.out, own.out) << "the shard and the model it is cut from need the same";
}

TEST_F(VerbsTest, AnExistingFileIsKeptUnlessForced) {
  std::string out = Path("shard.gguf");
  tiny::TestFolder::Write(out, "mine");
  Finished refused = Meshnet({"cut", PlainModel(), "--layers", "0:2", "-o", out});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr(out));
  EXPECT_EQ(tiny::TestFolder::Read(out), "mine");
  EXPECT_EQ(Meshnet({"cut", PlainModel(), "--layers", "0:2", "-o", out, "--force"}).code, 0);
  EXPECT_NE(Meshnet({"cut", PlainModel(), "--layers", "0:2", "-o", PlainModel(), "--force"}).code, 0) << "never over an input";
  EXPECT_EQ(Json({"inspect", PlainModel(), "--json"})["shard"], nullptr);
}

TEST_F(VerbsTest, VerifyFindsNoDifference) {
  for (const std::vector<std::string>& split : {std::vector<std::string>{"--shards", "1"}, std::vector<std::string>{"--shards", "2"},
                                                std::vector<std::string>{"--cuts", "1,3"}}) {
    std::vector<std::string> arguments = {"verify", PlainModel(), "--steps", "8", "-t", "1", "--json"};
    arguments.insert(arguments.end(), split.begin(), split.end());
    json verdict = Json(arguments);
    EXPECT_THAT(Keys(verdict), testing::UnorderedElementsAre("model", "architecture", "layers", "cuts", "tokens_equal", "max_abs_logit_diff", "sessions", "workers"));
    EXPECT_EQ(verdict["tokens_equal"], true);
    EXPECT_EQ(verdict["max_abs_logit_diff"], 0.0);
    EXPECT_EQ(verdict["workers"].size(), verdict["cuts"].size() + 1);
    for (const json& worker : verdict["workers"]) {
      EXPECT_GT(worker["rss_bytes"], 0);
      EXPECT_GT(worker["weight_bytes"], 0);
      EXPECT_EQ(worker["kv_bytes_predicted"], worker["kv_bytes_allocated"]);
    }
  }
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(VerbsTest, VerifyOfATextModelTakesAPrompt) {
  json verdict = Json({"verify", TextModel(), "--shards", "2", "--steps", "4", "-t", "1", "--prompt", "Once upon a time", "--json"});
  EXPECT_GT(verdict["sessions"][0]["prompt_tokens"], 3);
  EXPECT_EQ(verdict["max_abs_logit_diff"], 0.0);
  EXPECT_EQ(Meshnet({"verify", PlainModel(), "--shards", "2", "--prompt", "text"}).code, 3) << "no tokenizer";
  std::string long_prompt;
  for (int i = 0; i < 100; ++i) long_prompt += "Once upon a time ";
  verdict = Json({"verify", TextModel(), "--shards", "2", "--steps", "2", "-t", "1", "-ub", "512", "--prompt", long_prompt, "--json"});
  EXPECT_GT(verdict["sessions"][0]["prompt_tokens"], 128) << "more than a tail gives logits of at once";
  EXPECT_EQ(verdict["max_abs_logit_diff"], 0.0);
}

TEST_F(VerbsTest, SessionsThatMeetOnTheWorkersAreEqualToThemselvesAlone) {
  json verdict = Json({"verify", PlainModel(), "--shards", "2", "--sessions", "4", "--steps", "12", "-t", "1", "--json"});
  ASSERT_EQ(verdict["sessions"].size(), 4u);
  EXPECT_EQ(verdict["tokens_equal"], true);
  EXPECT_EQ(verdict["max_abs_logit_diff"], 0.0);
  std::set<int> lengths;
  for (const json& session : verdict["sessions"]) lengths.insert(session["prompt_tokens"].get<int>());
  EXPECT_GT(lengths.size(), 1u) << "different prompts";
}

TEST_F(VerbsTest, VerifyTellsAnotherModelApart) {
  tiny::TinyModelOptions other;
  other.weights = tiny::WeightType::kQ8_0;
  other.seed = 2;
  json verdict = Json({"verify", PlainModel(), "--reference", WriteModel(other, "other.gguf"), "--shards", "2", "--steps", "4", "-t", "1", "--json"}, 1);
  EXPECT_GT(verdict["max_abs_logit_diff"], 0.0);
  EXPECT_EQ(verdict["tokens_equal"], false);
}

TEST_F(VerbsTest, ExactRefusesWeightsItDoesNotCover) {
  tiny::TinyModelOptions half;
  half.weights = tiny::WeightType::kF16;
  Finished finished = Meshnet({"verify", WriteModel(half, "half.gguf"), "--shards", "2", "--numerics", "exact"});
  EXPECT_EQ(finished.code, 7) << finished.err;
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(VerbsTest, BenchMeasuresBothSides) {
  json bench = Json({"bench", TextModel(), "--shards", "2", "-p", "16", "-n", "8", "-r", "1", "--sessions", "1,2", "-t", "1", "--http", "--exact", "--json"});
  EXPECT_THAT(Keys(bench), testing::UnorderedElementsAre("machine", "commit", "runs", "ratios"));
  std::set<std::string> targets;
  for (const json& run : bench["runs"]) {
    targets.insert(run["target"].get<std::string>());
    EXPECT_GT(run["tokens_per_second"], 0);
    EXPECT_EQ(run["threads"], 1);
  }
  EXPECT_THAT(targets, ElementsAre("meshnet", "meshnet-exact", "meshnet-http", "single"));
  EXPECT_GT(bench["ratios"]["meshnet/single tg8"], 0);
  EXPECT_GT(bench["ratios"]["meshnet/single pp16+tg8 x2"], 0);
  EXPECT_GT(bench["ratios"]["meshnet-exact/meshnet pp16"], 0);
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(VerbsTest, CertificatesAreReadableByTheirOwnerOnlyAndTheAuthorityStays) {
  ASSERT_EQ(Meshnet({"certificates", "-o", Path("tls"), "hub", "a,127.0.0.1"}).code, 0);
  std::string authority = tiny::TestFolder::Read(Path("tls/ca.pem"));
  ASSERT_EQ(Meshnet({"certificates", "-o", Path("tls"), "b"}).code, 0);
  EXPECT_EQ(tiny::TestFolder::Read(Path("tls/ca.pem")), authority);
  for (const char* name : {"tls/ca.key", "tls/hub.key", "tls/a.key", "tls/b.key"}) {
    struct stat info;
    ASSERT_EQ(stat(Path(name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0077, 0u) << name;
  }
  for (const char* name : {"tls/hub.pem", "tls/a.pem", "tls/b.pem"}) EXPECT_TRUE(std::filesystem::exists(Path(name))) << name;
}

TEST_F(VerbsTest, RunAnswersOnceAndLeavesNothing) {
  std::vector<std::string> arguments = {"run", TextModel(), "--shards", "2", "-p", "hello", "-n", "12", "--temp", "0", "-t", "1"};
  Finished first = Meshnet(arguments);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out, "");
  arguments[3] = "1";
  EXPECT_EQ(Meshnet(arguments).out, first.out) << "the split changes nothing";
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(VerbsTest, RunTakesQuestionsFromAPipe) {
  StartOptions options = Options();
  options.input = "one\n\n/clear\ntwo";
  Finished finished = Meshnet({"run", TextModel(), "--shards", "1", "-n", "4", "--temp", "0", "-t", "1"}, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::Not(HasSubstr("\x1b"))) << "no terminal, no colours";
  Finished alone = Meshnet({"run", TextModel(), "--shards", "1", "-n", "4", "--temp", "0", "-t", "1", "-p", "two"}, Options());
  EXPECT_THAT(finished.out, testing::EndsWith(alone.out)) << "/clear forgot the first question";
  EXPECT_GT(finished.out.size(), alone.out.size());
}

TEST_F(VerbsTest, ACutModelIsNotCutAgain) {
  std::string model = PlainModel();
  ASSERT_EQ(Meshnet({"verify", model, "--shards", "2", "--steps", "1", "-t", "1"}).code, 0);
  std::vector<std::filesystem::path> shards;
  std::map<std::filesystem::path, std::filesystem::file_time_type> times;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("cache/meshnet/shards"))) {
    if (entry.path().extension() == ".gguf") times[entry.path()] = entry.last_write_time();
  }
  ASSERT_EQ(times.size(), 2u);
  ASSERT_EQ(Meshnet({"verify", model, "--shards", "2", "--steps", "1", "-t", "1"}).code, 0);
  for (const auto& [path, time] : times) EXPECT_EQ(std::filesystem::last_write_time(path), time) << path;
  // A damaged one is noticed and replaced.
  std::string path = times.begin()->first.string(), bytes = tiny::TestFolder::Read(path);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  tiny::TestFolder::Write(path, bytes);
  EXPECT_EQ(Meshnet({"verify", model, "--shards", "2", "--steps", "1", "-t", "1"}).code, 0);
}

TEST_F(VerbsTest, KilledWhileCuttingNothingHasItsFinalName) {
  tiny::TinyModelOptions large;
  large.layers = 10;
  large.width = 512;
  large.feed_forward = 2048;
  std::string model = WriteModel(large, "large.gguf");
  std::unique_ptr<TestProcess> cut = Start({"cut", model, "--shards", "2", "-o", Path("out")});
  // As soon as anything is being written.
  Eventually([this, &cut] { return !cut->running() || (std::filesystem::exists(Path("out")) && !std::filesystem::is_empty(Path("out"))); });
  cut->Signal(SIGKILL);
  cut->Wait();
  for (const auto& entry : std::filesystem::directory_iterator(Path("out"))) {
    if (entry.path().extension() != ".gguf") continue;
    EXPECT_EQ(Meshnet({"inspect", entry.path().string()}).code, 0) << entry.path() << " is half a file";
  }
  EXPECT_EQ(Meshnet({"cut", model, "--shards", "2", "-o", Path("out"), "--force"}).code, 0);
}

}  // namespace
}  // namespace meshnet::process
