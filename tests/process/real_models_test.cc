// The proof of split on real models. Opt in: MESHNET_REAL_MODELS=1; each model is fetched once with scripts/model NAME.
#include <gmock/gmock.h>
#include <signal.h>

#include <set>

#include "process/real_model_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;

class RealModelsTest : public RealModelBed {
 protected:
  json Verify(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"verify", "--json"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Finished finished = Meshnet(all, RealOptions());
    EXPECT_EQ(finished.code, 0) << finished.err << finished.out;
    json verdict = json::parse(finished.out, nullptr, false);
    return verdict.is_object() ? verdict : json::object();
  }
  void ExpectExact(const std::vector<std::string>& arguments) {
    json verdict = Verify(arguments);
    EXPECT_EQ(verdict["max_abs_logit_diff"], 0.0) << testing::PrintToString(arguments);
    EXPECT_EQ(verdict["tokens_equal"], true) << testing::PrintToString(arguments);
    for (const json& worker : verdict["workers"]) EXPECT_EQ(worker["kv_bytes_predicted"], worker["kv_bytes_allocated"]);
  }
};

TEST_F(RealModelsTest, SmolLm2InOneTwoThreeShardsAndAtItsEdges) {
  MESHNET_REAL_MODEL(model, "smollm2-135m");
  for (const char* shards : {"1", "2", "3"}) ExpectExact({model, "--shards", shards});
  ExpectExact({model, "--cuts", "1,29"});
}

TEST_F(RealModelsTest, SmolLm2WithTwoThreads) {
  MESHNET_REAL_MODEL(model, "smollm2-135m");
  ExpectExact({model, "--shards", "3", "-t", "2"});
  ExpectExact({model, "--shards", "2", "-t", "2", "--numerics", "exact"});
}

TEST_F(RealModelsTest, FourSessionsAtOnceAreFourAlone) {
  MESHNET_REAL_MODEL(model, "smollm2-135m");
  json verdict = Verify({model, "--shards", "3", "--sessions", "4"});
  ASSERT_EQ(verdict["sessions"].size(), 4u);
  for (const json& session : verdict["sessions"]) {
    EXPECT_EQ(session["max_abs_logit_diff"], 0.0);
    EXPECT_EQ(session["tokens_equal"], true);
  }
}

TEST_F(RealModelsTest, QwenInTwoShardsWithTheWeightsOfOne) {
  MESHNET_REAL_MODEL(model, "qwen2.5-coder-1.5b");
  ExpectExact({model, "--shards", "2", "--steps", "16"});
  json verdict = Verify({model, "--shards", "2", "--steps", "1"}), whole = Verify({model, "--shards", "1", "--steps", "1"});
  double split = 0;
  for (const json& worker : verdict["workers"]) split += worker["weight_bytes"].get<double>();
  EXPECT_LT(split, 1.05 * whole["workers"][0]["weight_bytes"].get<double>());
}

TEST_F(RealModelsTest, EveryCutOfGemmaIsExactOrRefusedByName) {
  MESHNET_REAL_MODEL(model, "gemma3-270m");
  Finished inspected = Meshnet({"inspect", model, "--json"}, RealOptions());
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  json shape = json::parse(inspected.out);
  std::set<int> legal = shape["cuts"]["legal"].get<std::set<int>>();
  EXPECT_FALSE(legal.empty());
  for (int cut = 1; cut < shape["layers"].get<int>(); ++cut) {
    std::vector<std::string> arguments = {model, "--cuts", std::to_string(cut), "--steps", "8"};
    if (legal.contains(cut)) {
      ExpectExact(arguments);
      continue;
    }
    arguments.insert(arguments.begin(), "verify");
    Finished refused = Meshnet(arguments, RealOptions());
    EXPECT_EQ(refused.code, 7) << cut << ": " << refused.err;
    EXPECT_THAT(refused.err, testing::HasSubstr("gemma3")) << cut;
  }
}

TEST_F(RealModelsTest, AKilledWorkerIsAPauseAndTheAnswerIsTheSame) {
  MESHNET_REAL_MODEL(model, "smollm2-135m");
  Server server = Serve({model, "--shards", "3", "--numerics", "exact"}, RealOptions());
  json body = Completion("The three most important inventions of the nineteenth century are", 96);
  bool whole = false;
  std::string undisturbed = Stream(server.url, body).Finish(&whole);
  ASSERT_TRUE(whole);
  for (size_t stage = 0; stage < 3; ++stage) {
    json status = json::parse(Get(server.url, "/cluster/v1/status").body);
    Stream stream(server.url, body);
    ASSERT_TRUE(Eventually([&] { return stream.events() > 10; }));
    kill(status["workers"][stage]["pid"].get<pid_t>(), SIGKILL);
    EXPECT_EQ(stream.Finish(&whole), undisturbed) << "stage " << stage;
    EXPECT_TRUE(whole);
    EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200; }));
  }
}

}  // namespace
}  // namespace meshnet::process
