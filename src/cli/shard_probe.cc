#include "cli/shard_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/cache_folder.h"
#include "base/sha256.h"
#include "cli/build_description.h"
#include "cli/child_process.h"
#include "cli/report.h"
#include "engine/llama/llama_shard_engine.h"

namespace meshnet::cli {
namespace {

constexpr uint32_t kProbeContext = 256;
constexpr std::chrono::seconds kProbeSecondsLeast{600};
constexpr uint64_t kBytesPerSecond = 16'000'000;

// File in the cache whose presence says that this very shard ran with these very options on this very build; empty when nothing can be kept.
std::string RecordPath(const EngineOptions& options) {
  struct stat info;
  Result<std::string> folder = CacheFolder("probes");
  if (!folder.ok() || stat(options.shard_path.c_str(), &info) != 0) return "";
  std::string key = options.shard_path;
  for (uint64_t number : {static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_mtim.tv_sec), static_cast<uint64_t>(info.st_mtim.tv_nsec),
                          static_cast<uint64_t>(info.st_ino), static_cast<uint64_t>(options.numerics), static_cast<uint64_t>(options.ubatch_tokens),
                          static_cast<uint64_t>(options.flash_attention), static_cast<uint64_t>(static_cast<uint32_t>(options.gpu_layers))}) {
    key += "|" + std::to_string(number);
  }
  key += "|" + options.kv_type_k + "|" + options.kv_type_v + "|" + options.device + "|" + BuildDescription();
  return *folder + "/" + Sha256().Update(key).Digest().Hex();
}

// One step, as a route would send it. Only whether the process survives is asked: made-up rows may well overflow in a sound model.
void RunOnce(Engine& engine, uint32_t rows, const std::vector<Token>& tokens) {
  const EngineInfo& info = engine.info();
  HiddenState input(rows, info.boundary_width, std::vector<float>(size_t{rows} * info.boundary_width, 0.01f));
  EngineStep step;
  step.sequence = SequenceId(0);
  step.start = engine.past_len(step.sequence);
  step.tokens = std::span<const Token>(tokens).first(rows);
  step.input = info.range.begin == 0 ? nullptr : &input;
  step.rows = info.range.end == info.layer_count ? RowsWanted::kLast : RowsWanted::kAll;
  if (engine.Run(std::span<const EngineStep>(&step, 1)).front().fate == EngineFate::kLost) engine.Remove(step.sequence);
}

// False when it still runs after `limit`.
bool WaitForEnd(const ChildProcess& child, Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd entry = {child.pid_fd, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000))) > 0) return true;
    if (left <= 0) return false;
  }
}

}  // namespace

Duration ProbeLimit(uint64_t shard_bytes) {
  return kProbeSecondsLeast + std::chrono::seconds(shard_bytes / kBytesPerSecond);
}

Status ProbeShard(const EngineOptions& given) {
  EngineOptions options = given;
  options.sessions_max = 1;
  options.context_tokens = std::min(given.context_tokens, kProbeContext);
  options.budget_tokens = options.context_tokens;
  Result<std::unique_ptr<Engine>> engine = CreateLlamaShardEngine(options);
  if (!engine.ok()) return engine.status();
  uint32_t rows = std::max<uint32_t>(1, std::min<uint32_t>({(*engine)->info().chunk_rows_max, options.context_tokens - 1, 8}));
  std::vector<Token> tokens(rows, 0);
  for (uint32_t i = 0; i < rows; ++i) tokens[i] = static_cast<Token>(i % std::max<uint32_t>(1, (*engine)->info().vocabulary_size));
  RunOnce(**engine, rows, tokens);
  RunOnce(**engine, 1, tokens);
  return OkStatus();
}

Status ProbeInChild(const std::string& program, const std::vector<std::string>& arguments, const EngineOptions& options, Duration limit) {
  std::string record = RecordPath(options);
  if (!record.empty() && access(record.c_str(), F_OK) == 0) return OkStatus();
  Result<ChildProcess> child = StartChild(program, arguments);
  if (!child.ok()) return child.status();
  const bool ended = WaitForEnd(*child, limit);
  if (!ended) kill(child->pid, SIGKILL);
  int status = 0;
  while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
  }
  child->CloseAll();
  if (!ended) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
    return BadModel(options.shard_path + ": llama.cpp had not run this shard after " + std::to_string(seconds) + " s, so it is not served");
  }
  if (WIFSIGNALED(status)) {
    return BadModel(options.shard_path + ": llama.cpp ends its process with " + DescribeEnd(status) +
                    " on this shard, so it is not served; its own message is above");
  }
  int code = WEXITSTATUS(status);
  if (code != 0) return Status(static_cast<StatusCode>(std::clamp(code, 1, 7)), options.shard_path + " cannot be run: " + DescribeEnd(status));
  if (!record.empty()) {
    int fd = open(record.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
  }
  return OkStatus();
}

}  // namespace meshnet::cli
