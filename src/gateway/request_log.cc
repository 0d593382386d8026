#include "gateway/request_log.h"

#include <spdlog/spdlog.h>

#include <map>
#include <mutex>

namespace meshnet::gateway {
namespace {
constexpr Duration kFold = std::chrono::seconds(10);
}

void LogAnswer(const RequestLine& line, int status, const AnswerInFlight::Summary& summary, Time now) {
  const std::string first_token = summary.first_token_seconds < 0 ? "none" : fmt::format("{:.3f}s", summary.first_token_seconds);
  spdlog::info("{} {} status={} owner={} prompt={} cached={} generated={} replays={} first_token={} total={:.3f}s", line.id, line.kind,
               status, line.owner, summary.usage.prompt_tokens, summary.usage.cached_tokens, summary.usage.completion_tokens,
               summary.replays, first_token, std::chrono::duration<double>(now - line.begun).count());
}

void LogFolded(const std::string& what, Time now) {
  struct Fold {
    Time last;
    uint64_t left_out = 0;
  };
  static std::mutex mutex;
  static std::map<std::string, Fold> folds;
  uint64_t left_out = 0;
  {
    std::lock_guard lock(mutex);
    const auto [found, fresh] = folds.try_emplace(what, Fold{now, 0});
    if (!fresh && now - found->second.last < kFold) {
      ++found->second.left_out;
      return;
    }
    left_out = found->second.left_out;
    found->second = {now, 0};
  }
  if (left_out == 0) {
    spdlog::warn("{}", what);
  } else {
    spdlog::warn("{} ({} more like it before)", what, left_out);
  }
}

void LogNotice(const std::string& text) { spdlog::info("{}", text); }

}  // namespace meshnet::gateway
