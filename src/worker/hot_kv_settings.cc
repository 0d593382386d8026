#include "worker/hot_kv_settings.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "wire/clean_text.h"

namespace meshnet {
namespace {

constexpr char kSessions[] = "MESHNET_HOT_KV_MAX_SESSIONS";
constexpr char kContext[] = "MESHNET_HOT_KV_CONTEXT_TOKENS";
constexpr char kBudget[] = "MESHNET_HOT_KV_BUDGET_TOKENS";
constexpr char kTtl[] = "MESHNET_HOT_KV_TTL_SECONDS";
constexpr uint64_t kContextMax = 1u << 20;
constexpr uint64_t kBudgetMax = 1u << 24;

// Decimal digits only: no sign, no blanks, no unit, no overflow.
std::optional<uint64_t> ParseNumber(std::string_view text) {
  if (text.empty() || text.size() > 12 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  uint64_t number = 0;
  for (char c : text) number = number * 10 + static_cast<uint64_t>(c - '0');
  return number;
}

Status Refuse(const char* name, std::string_view value, uint64_t low, uint64_t high) {
  return BadConfiguration(std::string(name) + "=\"" + CleanText(value, 100) + "\" is refused: it must be a number from " + std::to_string(low) + " to " +
                          std::to_string(high));
}

template <typename Number>
Status Read(const std::function<const char*(const char*)>& get, const char* name, uint64_t low, uint64_t high, Number& number) {
  const char* text = get(name);
  if (!text) return OkStatus();
  std::optional<uint64_t> value = ParseNumber(text);
  if (!value || *value < low || *value > high) return Refuse(name, text, low, high);
  number = static_cast<Number>(*value);
  return OkStatus();
}

}  // namespace

Result<HotKvSettings> ReadHotKvSettings(const std::function<const char*(const char*)>& get) {
  HotKvSettings settings;
  for (const Status& status : {Read(get, kSessions, 1, 256, settings.sessions_max), Read(get, kContext, 1, kContextMax, settings.context_tokens),
                               Read(get, kBudget, 1, kBudgetMax, settings.budget_tokens), Read(get, kTtl, 1, 31536000, settings.ttl_seconds)}) {
    if (!status.ok()) return status;
  }
  if (settings.context_tokens <= settings.budget_tokens) return settings;
  // Blame what was set: a budget alone may be too small for the default context, and the other way round.
  if (get(kBudget)) return Refuse(kBudget, get(kBudget), settings.context_tokens, kBudgetMax);
  return Refuse(kContext, get(kContext), 1, settings.budget_tokens);
}

}  // namespace meshnet
