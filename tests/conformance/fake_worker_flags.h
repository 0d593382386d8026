// A worker on the fake engine, as flags describe it: for tests that need a process of its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/fake_engine.h"
#include "protocol/describe.h"
#include "worker/shard_worker.h"

namespace meshnet {

struct FakeWorkerFlags {
  ShardWorkerOptions worker;
  FakeModel model;
  LayerRange range = {0, 6};
  uint32_t chunk_rows_max = 128;
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 64;
  uint32_t call_delay_ms = 0;  // what each engine call takes longer
  std::string slow_file;       // an engine call waits while this file exists, and makes SLOW_FILE.waiting meanwhile
  uint32_t load_delay_ms = 0;  // what "reading the model" takes
  bool fail_to_load = false;
  std::string model_name = "fake";
};

extern const char kFakeWorkerUsage[];
// kUsage names the flag. Reads MESHNET_HOT_KV_* too.
Result<FakeWorkerFlags> ParseFakeWorkerFlags(int argc, char** argv);

// What the worker publishes; the same flags give the same identity, so that stages of one model fit together.
ShardDescription DescriptionOf(const FakeWorkerFlags& flags);
FakeEngineOptions EngineOptionsOf(const FakeWorkerFlags& flags);

}  // namespace meshnet
