// What operators do while it runs: workers started, stopped and replaced by hand, and figures scraped.
#include <gmock/gmock.h>
#include <signal.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The text format of Prometheus 0.0.4, read strictly: what is wrong with it, or nothing.
class Exposition {
 public:
  std::string Read(const std::string& text) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+"), type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
    static const std::regex sample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\})? (-?[0-9.]+(?:[eE][-+]?[0-9]+)?|[+-]Inf|NaN))re");
    if (text.empty() || text.back() != '\n') return "it does not end with a line break";
    std::istringstream lines(text);
    std::smatch match;
    for (std::string line; std::getline(lines, line);) {
      if (std::regex_match(line, match, type)) {
        if (!types_.emplace(match[1], match[2]).second) return "two types: " + line;
      } else if (std::regex_match(line, match, sample)) {
        if (std::string wrong = Take(match[1], match[2], match[3]); !wrong.empty()) return wrong + ": " + line;
      } else if (!std::regex_match(line, help)) {
        return "no line of the format: " + line;
      }
    }
    return "";
  }
  size_t samples() const { return seen_.size(); }

 private:
  std::string Take(const std::string& name, const std::string& labels, const std::string& value) {
    if (!seen_.insert(name + labels).second) return "a series comes twice";
    std::string family = name;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      std::string tail = suffix;
      if (types_.contains(name) || name.size() <= tail.size() || name.compare(name.size() - tail.size(), tail.size(), tail) != 0) continue;
      family = name.substr(0, name.size() - tail.size());
    }
    if (!types_.contains(family)) return "no TYPE before it";
    double number = std::stod(value);
    if (types_[family] == "counter" && (number < 0 || !name.ends_with("_total"))) return "no counter";
    // A histogram's count stands in front of its buckets, the last of which counts all.
    if (types_[family] == "histogram" && name == family + "_count") count_ = number;
    if (name == family + "_bucket") {
      if (number < last_bucket_) return "a bucket smaller than the one before";
      const bool last = labels.find("+Inf") != std::string::npos;
      if (last && number != count_) return "not the histogram's count";
      last_bucket_ = last ? 0 : number;
    }
    return "";
  }

  std::map<std::string, std::string> types_;
  std::set<std::string> seen_;
  double last_bucket_ = 0, count_ = 0;
};

TEST(ExpositionTest, FindsWhatScrapersChokeOn) {
  const std::string good = "# HELP h a\n# TYPE h histogram\nh_count 3\nh_sum 1.5\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\n";
  EXPECT_EQ(Exposition().Read(good), "");
  for (const char* bad : {"", "a_total 1\n", "# TYPE a_total counter\na_total 1", "# TYPE a_total counter\na_total -1\n", "# TYPE a counter\na 1\n",
                          "# TYPE a gauge\na{b=\"c} 1\n", "# TYPE a gauge\na 1\na 1\n", "# TYPE a gauge\n# TYPE a gauge\n", "# TYPE a gauge\na one\n",
                          "# TYPE h histogram\nh_count 3\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 1\nh_bucket{le=\"+Inf\"} 3\n",
                          "# TYPE h histogram\nh_count 4\nh_bucket{le=\"+Inf\"} 3\n"}) {
    EXPECT_NE(Exposition().Read(bad), "") << bad;
  }
}

class OperatorsTest : public ProcessBed {
 protected:
  void SetUp() override {
    ProcessBed::SetUp();
    ASSERT_EQ(Meshnet({"cut", TextModel(), "--cuts", "2", "-o", Path("out")}).code, 0);
  }
  std::string Shard(const std::string& layers) const { return Path("out/text-" + layers + ".gguf"); }
  std::string Socket(int stage) const { return "unix:" + Path("tmp/w" + std::to_string(stage) + ".sock"); }
  std::unique_ptr<TestProcess> Worker(int stage) {
    return Start({"worker", "--shard", Shard(stage == 0 ? "0-2" : "2-4"), "--listen", Socket(stage), "-t", "1", "--numerics", "exact"});
  }
  std::vector<std::string> GatewayFlags(const std::string& connect_seconds) const {
    return {"gateway", "--route", Socket(0) + "," + Socket(1), "--vocab", Shard("0-2"), "--listen", "127.0.0.1:0", "--connect-timeout", connect_seconds};
  }
  // Its URL, once it is ready.
  std::string UrlOf(TestProcess& gateway) {
    EXPECT_TRUE(Eventually([&] { return gateway.out().find('\n') != std::string::npos || !gateway.running(); }));
    EXPECT_TRUE(gateway.running()) << gateway.err();
    return gateway.out().substr(0, gateway.out().find('\n'));
  }
};

// Sessions that run go on while their worker drains; its place is taken by another process, and the next answer is the same.
TEST_F(OperatorsTest, AWorkerIsReplacedWithoutAnAnswerLost) {
  std::unique_ptr<TestProcess> head = Worker(0), tail = Worker(1);
  std::unique_ptr<TestProcess> gateway = Start(GatewayFlags("60"));
  std::string url = UrlOf(*gateway);
  Stream stream(url, Completion("Once upon a time", 300));
  ASSERT_TRUE(Eventually([&] { return stream.events() > 5; }));
  tail->Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return Get(url, "/readyz").status == 503; }));
  EXPECT_THAT(Get(url, "/readyz").body, HasSubstr("stage 1 [2,4)"));
  bool whole = false;
  std::string text = stream.Finish(&whole);
  EXPECT_TRUE(whole) << gateway->err();
  EXPECT_EQ(tail->Wait(), 0) << tail->err();

  tail = Worker(1);
  EXPECT_TRUE(Eventually([&] { return Get(url, "/readyz").status == 200; })) << gateway->err();
  Stream again(url, Completion("Once upon a time", 300));
  EXPECT_EQ(again.Finish(&whole), text);
  EXPECT_TRUE(whole);
}

// A worker that stands still while it loads, or at any other time, is told by stage and address; once it goes on, so does the route.
TEST_F(OperatorsTest, AStandingWorkerIsFourAndThenFound) {
  std::unique_ptr<TestProcess> head = Worker(0), tail = Worker(1);
  tail->Signal(SIGSTOP);
  Finished early = Meshnet(GatewayFlags("1"));
  EXPECT_EQ(early.code, 4) << early.err;
  EXPECT_THAT(early.err, HasSubstr("w1.sock"));
  std::unique_ptr<TestProcess> gateway = Start(GatewayFlags("60"));
  tail->Signal(SIGCONT);
  EXPECT_EQ(Get(UrlOf(*gateway), "/readyz").status, 200) << gateway->err();
}

TEST_F(OperatorsTest, MetricsAreReadByAStrictReaderWhileAnswersRun) {
  Server server = Serve({TextModel(), "--shards", "2"});
  Stream one(server.url, Completion("Once upon a time", 300)), other(server.url, Completion("Another time", 300));
  ASSERT_TRUE(Eventually([&] { return one.events() > 5 && other.events() > 5; }));
  for (int i = 0; i < 20; ++i) {
    HttpReply reply = Get(server.url, "/metrics");
    ASSERT_EQ(reply.status, 200);
    Exposition exposition;
    ASSERT_EQ(exposition.Read(reply.body), "");
    ASSERT_GT(exposition.samples(), 50u);
  }
  bool whole = false;
  one.Finish(&whole);
  EXPECT_TRUE(whole);
  other.Finish(&whole);
  EXPECT_TRUE(whole);
}

}  // namespace
}  // namespace meshnet::process
