// The workers here are shell scripts: `echo … >&4` says ready, `read line <&3` waits for the lifeline to end.
#include "cli/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "base/system_clock.h"

namespace meshnet::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr const char* kServe = "echo here >&4; read line <&3";

class SupervisorTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "supervisor_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    options_.program = "/bin/sh";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Stages that run these scripts; "$DIR" is a folder of the test.
  std::unique_ptr<Supervisor> Make(const std::vector<std::string>& scripts) {
    std::vector<StageCommand> stages;
    for (size_t i = 0; i < scripts.size(); ++i) {
      stages.push_back({"stage " + std::to_string(i) + " [" + std::to_string(i) + "," + std::to_string(i + 1) + ")", "unix:/nowhere",
                        {"-c", "DIR=" + folder_ + "; " + scripts[i]}});
    }
    auto supervisor = std::make_unique<Supervisor>(options_, std::move(stages), clock_);
    supervisor->Launch();
    return supervisor;
  }

  // True once `claim` holds; false when it does not within 20 s, which is never waited for when things work.
  bool Eventually(const std::function<bool()>& claim) {
    Time deadline = clock_.Now() + seconds(20);
    while (!claim()) {
      if (clock_.Now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  size_t LinesIn(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }
  bool IsAlive(int pid) { return pid > 0 && kill(pid, 0) == 0; }

  SupervisorOptions options_;
  SystemClock clock_;
  std::string folder_;
};

TEST_F(SupervisorTest, WaitsUntilEachIsReadyAndEndsAll) {
  std::unique_ptr<Supervisor> supervisor = Make({kServe, kServe});
  ASSERT_TRUE(supervisor->WaitReady(nullptr).ok());
  std::vector<int> pids = supervisor->pids();
  ASSERT_EQ(pids.size(), 2u);
  EXPECT_TRUE(IsAlive(pids[0]) && IsAlive(pids[1]));
  supervisor->Stop(StopKind::kGraceful);
  EXPECT_FALSE(IsAlive(pids[0]) || IsAlive(pids[1]));
  EXPECT_TRUE(supervisor->ended());
  EXPECT_FALSE(supervisor->failure().has_value()) << "an end that was asked for is no failure";
}

TEST_F(SupervisorTest, StartsADeadWorkerAgainAndOnlyThatOne) {
  std::unique_ptr<Supervisor> supervisor = Make({kServe, kServe});
  ASSERT_TRUE(supervisor->WaitReady(nullptr).ok());
  std::vector<int> before = supervisor->pids();
  kill(before[1], SIGKILL);
  ASSERT_TRUE(Eventually([&] { return supervisor->pids()[1] > 0 && supervisor->pids()[1] != before[1]; }));
  EXPECT_TRUE(supervisor->WaitReady(nullptr).ok());
  EXPECT_EQ(supervisor->pids()[0], before[0]);
}

TEST_F(SupervisorTest, GivesUpNamingStageRangeAndCause) {
  options_.restarts_max = 3;
  std::unique_ptr<Supervisor> supervisor = Make({kServe, "echo x >>$DIR/starts; echo here >&4; kill -9 $$"});
  ASSERT_TRUE(Eventually([&] { return supervisor->failure().has_value(); }));
  EXPECT_EQ(supervisor->failure()->code(), StatusCode::kPeerUnreachable);
  EXPECT_THAT(supervisor->failure()->message(), testing::AllOf(HasSubstr("stage 1 [1,2)"), HasSubstr("signal 9"), HasSubstr("3 restarts")));
  EXPECT_EQ(LinesIn("starts"), 4u) << "the first start and three more";
}

TEST_F(SupervisorTest, ALastingReasonIsNotTriedAgain) {
  for (int code : {2, 3, 5, 6, 7}) {
    std::unique_ptr<Supervisor> supervisor = Make({"echo x >>$DIR/starts" + std::to_string(code) + "; exit " + std::to_string(code)});
    Status ready = supervisor->WaitReady(nullptr);
    EXPECT_EQ(ready.exit_code(), code);
    EXPECT_THAT(ready.message(), HasSubstr("stage 0 [0,1)"));
    EXPECT_EQ(LinesIn("starts" + std::to_string(code)), 1u);
  }
}

TEST_F(SupervisorTest, AWorkerThatOnceServedIsStartedAgainWhateverItsCode) {
  std::unique_ptr<Supervisor> supervisor = Make({"if test -e $DIR/once; then " + std::string(kServe) + "; else touch $DIR/once; echo here >&4; exit 6; fi"});
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(folder_ + "/once") && supervisor->WaitReady(nullptr).ok() && IsAlive(supervisor->pids()[0]); }));
  EXPECT_FALSE(supervisor->failure().has_value());
}

TEST_F(SupervisorTest, AWorkerThatIsNeverReadyIsADeadOne) {
  options_.ready_limit = milliseconds(50);
  options_.restarts_max = 1;
  std::unique_ptr<Supervisor> supervisor = Make({"echo x >>$DIR/starts; read line <&3"});
  Status ready = supervisor->WaitReady(nullptr);
  EXPECT_EQ(ready.code(), StatusCode::kPeerUnreachable);
  EXPECT_EQ(LinesIn("starts"), 2u);
}

TEST_F(SupervisorTest, StartingCanBeCancelled) {
  std::unique_ptr<Supervisor> supervisor = Make({"read line <&3"});
  EXPECT_FALSE(supervisor->WaitReady([] { return true; }).ok());
}

TEST_F(SupervisorTest, KillsWhatIgnoresTheRequestToEnd) {
  options_.stop_limit = milliseconds(50);
  std::unique_ptr<Supervisor> supervisor = Make({"trap '' TERM; echo here >&4; while true; do read line <&3; done"});
  ASSERT_TRUE(supervisor->WaitReady(nullptr).ok());
  int pid = supervisor->pids()[0];
  supervisor->Stop(StopKind::kGraceful);
  EXPECT_FALSE(IsAlive(pid));
}

TEST_F(SupervisorTest, NowCutsAGracefulEndShort) {
  options_.stop_limit = std::chrono::hours(1);
  std::unique_ptr<Supervisor> supervisor = Make({"trap '' TERM; echo here >&4; while true; do read line <&3; done"});
  ASSERT_TRUE(supervisor->WaitReady(nullptr).ok());
  supervisor->RequestStop(StopKind::kGraceful);
  supervisor->Stop(StopKind::kNow);
  EXPECT_TRUE(supervisor->ended());
}

TEST_F(SupervisorTest, AKilledHangIsADeathOfItsWorker) {
  std::unique_ptr<Supervisor> supervisor = Make({kServe});
  ASSERT_TRUE(supervisor->WaitReady(nullptr).ok());
  int before = supervisor->pids()[0];
  supervisor->Kill(0, "does not answer");
  EXPECT_TRUE(Eventually([&] { return supervisor->pids()[0] > 0 && supervisor->pids()[0] != before; }));
}

TEST_F(SupervisorTest, WorkersGetNothingOfOursButTheirArguments) {
  setenv("MESHNET_PORT", "1", 1);
  setenv("OTHER_VARIABLE", "kept", 1);
  int inherited = dup(STDERR_FILENO);  // without close-on-exec, as libraries leave them
  std::unique_ptr<Supervisor> supervisor = Make({"env >$DIR/env; ls /proc/$$/fd >$DIR/fds; " + std::string(kServe)});
  EXPECT_TRUE(supervisor->WaitReady(nullptr).ok());
  close(inherited);
  unsetenv("MESHNET_PORT");
  unsetenv("OTHER_VARIABLE");
  std::ifstream file(folder_ + "/env");
  std::string environment(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(environment, HasSubstr("OTHER_VARIABLE=kept"));
  EXPECT_THAT(environment, testing::Not(HasSubstr("MESHNET_")));
  std::ifstream numbers(folder_ + "/fds");
  for (int fd; numbers >> fd;) EXPECT_TRUE(fd <= 4 || fd >= 10) << fd << ": above 4 only what the shell keeps for itself";
}

}  // namespace
}  // namespace meshnet::cli
