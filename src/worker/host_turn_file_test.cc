#include "worker/host_turn_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace meshnet {
namespace {

class HostTurnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "meshnet-turn-XXXXXX";
    int fd = mkstemp(pattern.data());
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = pattern;
  }
  void TearDown() override { unlink(path_.c_str()); }
  std::unique_ptr<HostTurn> Open() {
    Result<std::unique_ptr<HostTurn>> turn = HostTurn::Open(path_);
    EXPECT_TRUE(turn.ok());
    return std::move(turn).value();
  }
  std::string path_;
};

TEST_F(HostTurnTest, NamesAFileThatCannotBeMade) {
  Result<std::unique_ptr<HostTurn>> turn = HostTurn::Open("/nowhere/turn");
  ASSERT_FALSE(turn.ok());
  EXPECT_EQ(turn.status().code(), StatusCode::kBadConfiguration);
  EXPECT_NE(turn.status().message().find("/nowhere/turn"), std::string::npos);
}

TEST_F(HostTurnTest, IsGivenAtOnceWhenFree) {
  std::unique_ptr<HostTurn> turn = Open();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turn->Acquire(), HostTurn::Got::kAtOnce);
    turn->Release();
  }
}

TEST_F(HostTurnTest, ExcludesEachOtherAndStarvesNobody) {
  constexpr int kTurns = 200;
  std::atomic<int> inside{0};
  std::atomic<int> together{0};
  std::atomic<int> done[2] = {0, 0};
  auto work = [&](int me) {
    std::unique_ptr<HostTurn> turn = Open();
    for (int i = 0; i < kTurns; ++i) {
      turn->Acquire();
      if (++inside != 1) ++together;
      ++done[me];
      std::this_thread::yield();
      --inside;
      turn->Release();
    }
  };
  std::thread a(work, 0), b(work, 1);
  a.join();
  b.join();
  EXPECT_EQ(together, 0);
  EXPECT_EQ(done[0], kTurns);
  EXPECT_EQ(done[1], kTurns);
}

TEST_F(HostTurnTest, TheOneThatWaitsIsServedBeforeTheOneThatHadIt) {
  std::unique_ptr<HostTurn> first = Open();
  ASSERT_EQ(first->Acquire(), HostTurn::Got::kAtOnce);
  HostTurn::Got second_got = HostTurn::Got::kAtOnce;
  std::atomic<bool> second_had_it{false};
  std::thread second_thread([&] {
    std::unique_ptr<HostTurn> second = Open();
    second_got = second->Acquire();
    second_had_it = true;
    second->Release();
  });
  // The second waits once it keeps the door (the file's first byte) closed.
  int probe = open(path_.c_str(), O_RDWR);
  struct flock door {};
  do {
    door.l_type = F_WRLCK;
    door.l_len = 1;
    door.l_pid = 0;
    ASSERT_EQ(fcntl(probe, F_OFD_GETLK, &door), 0);
  } while (door.l_type == F_UNLCK);
  close(probe);
  first->Release();
  first->Acquire();
  EXPECT_TRUE(second_had_it);
  first->Release();
  second_thread.join();
  EXPECT_EQ(second_got, HostTurn::Got::kAfterWaiting);
}

TEST_F(HostTurnTest, TheKernelFreesItWhenItsHolderIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    Result<std::unique_ptr<HostTurn>> turn = HostTurn::Open(path_);
    if (!turn.ok()) _exit(1);
    (*turn)->Acquire();
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::unique_ptr<HostTurn> turn = Open();
  std::thread killer([child] { kill(child, SIGKILL); });
  turn->Acquire();  // would block for ever
  turn->Release();
  killer.join();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace meshnet
