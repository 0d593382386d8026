#include "cli/system_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace meshnet::cli {
namespace {

using std::chrono::seconds;

void Forever() {
  for (;;) pause();
}

TEST(EndAtTheLatestDeathTest, WhatNeverEndsIsEnded) {
  EXPECT_EXIT((EndAtTheLatest(seconds(1)), Forever()), testing::ExitedWithCode(1), "ending at once");
}

TEST(EndAtTheLatestDeathTest, ASignalThatNobodyTakesEndsIt) {
  const auto stuck = [] {
    Signals signals;
    EndAtTheLatest(seconds(600));
    kill(getpid(), SIGTERM);
    Forever();
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(1), "ending at once");
}

}  // namespace
}  // namespace meshnet::cli
