// One shard worker process on the fake engine; see fake_worker_flags.h.
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "fake_worker_flags.h"

int main(int argc, char** argv) {
  using namespace meshnet;
  Result<FakeWorkerFlags> flags = ParseFakeWorkerFlags(argc, argv);
  if (!flags.ok()) {
    std::fprintf(stderr, "fake_shard_worker: %s\n", flags.status().message().c_str());
    return flags.status().exit_code();
  }
  Status status = RunShardWorker(flags->worker, DescriptionOf(*flags), [&flags]() -> Result<std::unique_ptr<Engine>> {
    std::this_thread::sleep_for(std::chrono::milliseconds(flags->load_delay_ms));
    if (flags->fail_to_load) return BadModel("the fake model cannot be read");
    return std::unique_ptr<Engine>(std::make_unique<FakeEngine>(EngineOptionsOf(*flags)));
  });
  if (!status.ok()) std::fprintf(stderr, "fake_shard_worker: %s\n", status.message().c_str());
  return status.exit_code();
}
