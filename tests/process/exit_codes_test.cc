// Each exit code of the contract, by what brings it about.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using testing::HasSubstr;

class ExitCodesTest : public ProcessBed {
 protected:
  // A listening socket of ours on loopback.
  struct TakenPort {
    TakenPort() {
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof address;
      EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
      EXPECT_EQ(listen(fd, 1), 0);
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
      port = std::to_string(ntohs(address.sin_port));
    }
    ~TakenPort() { close(fd); }
    int fd;
    std::string port;
  };

  size_t Lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }
};

TEST_F(ExitCodesTest, HelpAndVersionAreOk) {
  EXPECT_EQ(Meshnet({"--help"}).code, 0);
  EXPECT_THAT(Meshnet({"--version"}).out, HasSubstr("meshnet 0."));
  for (const char* verb : {"serve", "run", "cut", "inspect", "worker", "gateway", "chat", "verify", "bench", "status", "certificates"}) {
    Finished help = Meshnet({verb, "--help"});
    EXPECT_EQ(help.code, 0) << verb;
    EXPECT_THAT(help.out, HasSubstr("--")) << verb;
    EXPECT_THAT(help.out, testing::Not(HasSubstr("lifeline"))) << verb;
  }
}

TEST_F(ExitCodesTest, UsageMistakesAreTwoWithAUsageLine) {
  struct Row {
    std::vector<std::string> arguments;
    const char* says;
  };
  for (const Row& row : {
           Row{{}, "a verb is needed"},
           Row{{"nonsense"}, "nonsense"},
           Row{{"serve"}, "MODEL"},
           Row{{"serve", "m.gguf"}, "--shards"},
           Row{{"serve", "m.gguf", "--shards", "2", "--cuts", "1"}, "--shards"},
           Row{{"serve", "m.gguf", "--shards", "0"}, "0"},
           Row{{"serve", "m.gguf", "--shards", "two"}, "two"},
           Row{{"serve", "m.gguf", "--shards", "2", "--frobnicate"}, "--frobnicate"},
           Row{{"serve", "m.gguf", "--shards", "2", "--port", "65536"}, "65536"},
           Row{{"serve", "m.gguf", "--shards", "2", "-fa", "auto"}, "auto"},
           Row{{"cut", "m.gguf", "--layers", "3:3", "-o", "x"}, "3:3"},
           Row{{"cut", "m.gguf", "--shards", "2"}, "-o"},
           Row{{"worker"}, "--shard"},
           Row{{"worker", "--shard", "x", "--model", "y", "--layers", "0:1"}, "--shard"},
           Row{{"worker", "--shard", "x", "--listen", "host:99999"}, "host:99999"},
           Row{{"gateway", "--route", "host:99999", "--vocab", "x"}, "host:99999"},
           Row{{"gateway", "--vocab", "x"}, "--route"},
           Row{{"status", "--url", "ftp://x"}, "ftp://x"},
           Row{{"bench", "m.gguf", "--shards", "1", "--sessions", "0"}, "--sessions"},
           Row{{"certificates", "a"}, "-o"},
       }) {
    Finished finished = Meshnet(row.arguments);
    EXPECT_EQ(finished.code, 2) << row.says << finished.err;
    EXPECT_THAT(finished.err, testing::AllOf(HasSubstr(row.says), HasSubstr("usage: meshnet"))) << row.says;
    EXPECT_EQ(finished.out, "");
  }
}

TEST_F(ExitCodesTest, BadSettingsAreThreeAndNamed) {
  std::string model = PlainModel();
  struct Row {
    const char* variable;
    const char* value;
  };
  for (const Row& row : {Row{"MESHNET_HOT_KV_MAX_SESSIONS", "0"}, Row{"MESHNET_HOT_KV_MAX_SESSIONS", "-1"}, Row{"MESHNET_HOT_KV_MAX_SESSIONS", ""},
                         Row{"MESHNET_HOT_KV_MAX_SESSIONS", "1.5"}, Row{"MESHNET_HOT_KV_MAX_SESSIONS", "99999999999999999999"},
                         Row{"MESHNET_HOT_KV_CONTEXT_TOKENS", "many"}, Row{"MESHNET_HOT_KV_CONTEXT_TOKENS", "65536"},
                         Row{"MESHNET_HOT_KV_BUDGET_TOKENS", "7"}, Row{"MESHNET_HOT_KV_TTL_SECONDS", "0"}, Row{"MESHNET_THREADS", "all"}}) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"serve", model, "--shards", "2", "--port", "0"},
                                                      std::vector<std::string>{"worker", "--model", model, "--layers", "0:2", "--listen", "127.0.0.1:0"}}) {
      StartOptions options = Options();
      options.environment[row.variable] = row.value;
      Finished finished = Meshnet(arguments, options);
      EXPECT_EQ(finished.code, 3) << row.variable << "=" << row.value << " " << finished.err;
      EXPECT_THAT(finished.err, HasSubstr(row.variable));
      EXPECT_EQ(Lines(finished.err), 1u) << finished.err;
    }
  }
}

TEST_F(ExitCodesTest, FlagsWinOverTheEnvironment) {
  StartOptions options = Options();
  options.environment["MESHNET_HOT_KV_MAX_SESSIONS"] = "0";
  Finished finished = Meshnet({"inspect", PlainModel(), "--hot-kv-max-sessions", "2"}, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
}

TEST_F(ExitCodesTest, ATakenPortIsThreeBeforeTheModelIsRead) {
  TakenPort taken;
  std::string address = "127.0.0.1:" + taken.port;
  // No such model: a program that looked at it first would say five.
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"serve", Path("none.gguf"), "--shards", "2", "--port", taken.port},
                                                    std::vector<std::string>{"worker", "--shard", Path("none.gguf"), "--listen", address},
                                                    std::vector<std::string>{"gateway", "--route", "127.0.0.1:1", "--vocab", Path("none.gguf"), "--listen", address}}) {
    Finished finished = Meshnet(arguments);
    EXPECT_EQ(finished.code, 3) << arguments[0] << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(taken.port));
  }
}

TEST_F(ExitCodesTest, NobodyThereIsFour) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"status", "--url", "http://127.0.0.1:1"},
                                                    std::vector<std::string>{"chat", "--url", "127.0.0.1:1", "-p", "hello"},
                                                    std::vector<std::string>{"gateway", "--route", "127.0.0.1:1", "--vocab", TextModel(), "--listen", "127.0.0.1:0",
                                                                             "--connect-timeout", "0"}}) {
    Finished finished = Meshnet(arguments);
    EXPECT_EQ(finished.code, 4) << arguments[0] << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("127.0.0.1:1"));
  }
}

TEST_F(ExitCodesTest, WhatIsNoModelIsFiveEverywhere) {
  std::string garbage = Path("garbage.gguf"), empty = Path("empty.gguf"), cut_off = Path("cut-off.gguf");
  tiny::TestFolder::Write(garbage, std::string(5000, 'x'));
  tiny::TestFolder::Write(empty, "");
  tiny::TestFolder::Write(cut_off, tiny::TestFolder::Read(PlainModel()).substr(0, 20000));
  for (const std::string& path : {garbage, empty, cut_off, Path("none.gguf"), folder_.path()}) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", path}, std::vector<std::string>{"inspect", path, "--json"},
                                                      std::vector<std::string>{"cut", path, "--shards", "2", "-o", Path("out")},
                                                      std::vector<std::string>{"worker", "--shard", path, "--listen", "127.0.0.1:0"},
                                                      std::vector<std::string>{"serve", path, "--shards", "2", "--port", "0"},
                                                      std::vector<std::string>{"run", path, "--shards", "2", "-p", "x"},
                                                      std::vector<std::string>{"verify", path, "--shards", "2"}}) {
      Finished finished = Meshnet(arguments);
      EXPECT_EQ(finished.code, 5) << arguments[0] << " " << path << ": " << finished.err;
      EXPECT_THAT(finished.err, HasSubstr(path));
      EXPECT_EQ(Lines(finished.err), 1u) << finished.err;
      EXPECT_EQ(finished.out, "");
    }
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

// An assertion of llama.cpp's own, which only computing meets: its norm takes no negative epsilon.
TEST_F(ExitCodesTest, AShardOnWhichLlamaAbortsIsFiveAndNotServed) {
  const std::string key = "llama.attention.layer_norm_rms_epsilon";
  std::string bytes = tiny::TestFolder::Read(PlainModel());
  const size_t value = bytes.find(key) + key.size() + sizeof(uint32_t);  // behind its type
  ASSERT_LT(value, bytes.size());
  const float negative = -1;
  std::memcpy(bytes.data() + value, &negative, sizeof negative);
  const std::string model = Path("aborts.gguf");
  tiny::TestFolder::Write(model, bytes);
  // llama.cpp would attach a debugger before it ends, and a process that stands still meanwhile is no quick refusal.
  StartOptions options = Options();
  tiny::TestFolder::Write(Path("gdb"), "#!/bin/sh\ntouch " + Path("attached") + "\n");
  std::filesystem::permissions(Path("gdb"), std::filesystem::perms::owner_all);
  options.environment["PATH"] = folder_.path() + ":" + std::getenv("PATH");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"worker", "--model", model, "--layers", "0:2", "--listen", "127.0.0.1:0"},
                                                    std::vector<std::string>{"serve", model, "--shards", "2", "--port", "0", "-t", "1"}}) {
    Finished finished = Meshnet(arguments, options);
    EXPECT_EQ(finished.code, 5) << arguments[0] << ": " << finished.err;
    EXPECT_THAT(finished.err, testing::AllOf(HasSubstr("signal 6"), HasSubstr("is not served"))) << arguments[0];
  }
  EXPECT_FALSE(std::filesystem::exists(Path("attached")));
}

TEST_F(ExitCodesTest, TooLittleMemoryIsSixBeforeLoading) {
  StartOptions options = Options();
  options.environment["MESHNET_MEMORY_LIMIT_BYTES"] = "1000000";
  for (const char* verb : {"serve", "run", "verify"}) {
    Finished finished = Meshnet({verb, TextModel(), "--shards", "2"}, options);
    EXPECT_EQ(finished.code, 6) << verb << finished.err;
    EXPECT_THAT(finished.err, testing::AllOf(HasSubstr("need"), HasSubstr("available"))) << verb;
  }
  Finished worker = Meshnet({"worker", "--model", TextModel(), "--layers", "0:2", "--listen", "127.0.0.1:0"}, options);
  EXPECT_EQ(worker.code, 6) << worker.err;
  // A limit that is not understood is not a limit that is ignored.
  for (const char* text : {"1G", "-1", "", "999999999999999999999999"}) {
    options.environment["MESHNET_MEMORY_LIMIT_BYTES"] = text;
    Finished unread = Meshnet({"serve", TextModel(), "--shards", "2"}, options);
    EXPECT_EQ(unread.code, 3) << text << unread.err;
    EXPECT_THAT(unread.err, HasSubstr("MESHNET_MEMORY_LIMIT_BYTES")) << text;
  }
}

TEST_F(ExitCodesTest, WhatMustNotBeDoneIsSevenWithTheReason) {
  // The same file under a name that no table knows.
  std::string bytes = tiny::TestFolder::Read(PlainModel());
  for (size_t place = 0; (place = bytes.find("llama", place)) != std::string::npos;) bytes.replace(place, 5, "lxama");
  tiny::TestFolder::Write(Path("unknown.gguf"), bytes);
  struct Row {
    std::vector<std::string> arguments;
    const char* says;
  };
  std::string shard = Path("shard.gguf");
  ASSERT_EQ(Meshnet({"cut", PlainModel(), "--layers", "0:2", "-o", shard}).code, 0);
  for (const Row& row : {
           Row{{"cut", Path("unknown.gguf"), "--shards", "2", "-o", Path("out")}, "lxama"},
           Row{{"serve", Path("unknown.gguf"), "--cuts", "2", "--port", "0"}, "lxama"},
           Row{{"serve", shard, "--shards", "2", "--port", "0"}, "[0,2)"},
           Row{{"worker", "--shard", shard, "--listen", "0.0.0.0:0"}, "--insecure"},
           Row{{"serve", TextModel(), "--shards", "2", "--host", "0.0.0.0", "--port", "0"}, "--insecure"},
       }) {
    Finished finished = Meshnet(row.arguments);
    EXPECT_EQ(finished.code, 7) << row.says << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(row.says));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(ExitCodesTest, CutsThatAreNoneAreThree) {
  for (const char* cuts : {"4", "5", "2,2", "3,1"}) {
    Finished finished = Meshnet({"serve", PlainModel(), "--cuts", cuts, "--port", "0"});
    EXPECT_EQ(finished.code, 3) << cuts << ": " << finished.err;
  }
  EXPECT_EQ(Meshnet({"verify", PlainModel(), "--shards", "5"}).code, 3);
}

TEST_F(ExitCodesTest, AClosedOutputIsNoCrash) {
  for (int fd : {1, 2}) {
    StartOptions options = Options();
    options.closed_fd = fd;
    EXPECT_EQ(Meshnet({"inspect", PlainModel()}, options).code, 0) << fd;
    EXPECT_EQ(Meshnet({"nonsense"}, options).code, 2) << fd;
  }
}

}  // namespace
}  // namespace meshnet::process
