// The probed programs are shell scripts.
#include "cli/shard_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Status Probe(const std::string& script, Duration limit = std::chrono::minutes(1)) {
  EngineOptions options;
  options.shard_path = "/nowhere/shard.gguf";  // so nothing is remembered
  return ProbeInChild("/bin/sh", {"-c", script}, options, limit);
}

TEST(ShardProbeTest, AShardOnWhichTheProcessDiesIsNotServed) {
  const Status status = Probe("kill -ABRT $$");
  EXPECT_EQ(status.code(), StatusCode::kBadModel);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/nowhere/shard.gguf"), HasSubstr("signal 6"), HasSubstr("is not served")));
}

TEST(ShardProbeTest, AShardOnWhichTheProcessHangsIsNotServed) {
  const Status status = Probe("kill -STOP $$", std::chrono::milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kBadModel);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/nowhere/shard.gguf"), HasSubstr("is not served")));
}

TEST(ShardProbeTest, OtherwiseTheProcessSaysItself) {
  EXPECT_TRUE(Probe("exit 0").ok());
  EXPECT_EQ(Probe("exit 6").code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(Probe("exit 99").code(), StatusCode::kRefused) << "out of the range of exit codes";
}

TEST(ShardProbeTest, ALargeShardMayTakeLonger) {
  EXPECT_EQ(ProbeLimit(0), std::chrono::minutes(10));
  EXPECT_EQ(ProbeLimit(160'000'000'000), std::chrono::seconds(600 + 10'000));
}

}  // namespace
}  // namespace meshnet::cli
