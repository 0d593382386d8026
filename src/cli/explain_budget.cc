#include "cli/explain_budget.h"

#include <algorithm>

#include "cli/report.h"

namespace meshnet::cli {
namespace {

std::string Text(uint64_t value) { return std::to_string(value); }

// A name, a value and what it means.
std::string Row(const std::string& name, const std::string& value, const std::string& meaning) {
  std::string row = "  " + name;
  row.resize(std::max<size_t>(row.size() + 1, 33), ' ');
  row += value;
  row.resize(std::max<size_t>(row.size() + 1, 47), ' ');
  return row + meaning + "\n";
}

std::string Layout(const BudgetQuestion& question) {
  const HotKvSettings& kv = question.wish.hot_kv;
  const uint64_t wanted = uint64_t{kv.sessions_max} * kv.context_tokens;
  const std::string product = Text(kv.sessions_max) + " x " + Text(kv.context_tokens) + " = " + Text(wanted) + " tokens";
  if (question.engine.partitioned) {
    const std::string why = wanted <= kv.budget_tokens ? " fit the budget: " : ", in mode exact whatever the budget: ";
    return Row("cells", Text(question.engine.cells),
               product + why + Text(question.engine.cells / question.engine.sessions) + " of its own for each session");
  }
  return Row("cells", Text(question.engine.cells), product + " are more than the budget: one pool that all sessions share");
}

}  // namespace

std::string ExplainBudget(const BudgetQuestion& question) {
  const HotKvSettings& kv = question.wish.hot_kv;
  const MemoryNeed& need = question.need;
  std::string text = "Hot KV of " + question.what + ", before anything is loaded\n\n";
  text += Row("MESHNET_HOT_KV_MAX_SESSIONS", Text(kv.sessions_max), "sessions that hold KV at once");
  text += Row("MESHNET_HOT_KV_CONTEXT_TOKENS", Text(kv.context_tokens), "most tokens of one session, reserved when it opens");
  text += Row("MESHNET_HOT_KV_BUDGET_TOKENS", Text(kv.budget_tokens), "sum of all reservations");
  text += Row("MESHNET_HOT_KV_TTL_SECONDS", Text(kv.ttl_seconds), "seconds after which an idle session may go") + "\n";
  text += Row("sequences", Text(question.engine.sessions), "of llama.cpp, one for each session");
  text += Layout(question);
  text += Row("sessions at full context", Text(std::min<uint64_t>(kv.sessions_max, kv.budget_tokens / kv.context_tokens)),
              "fit the budget at once; shorter reservations let in more, up to " + Text(kv.sessions_max));
  text += Row("tokens of one step", Text(question.engine.chunk_rows), "at most") + "\n";
  const uint64_t in_cells = need.kv_bytes_per_token * question.engine.cells;
  text += Row("KV", HumanBytes(need.kv_bytes),
              HumanBytes(need.kv_bytes_per_token) + " a cell, keys in " + question.engine.kv_type_k + ", values in " + question.engine.kv_type_v +
                  (need.kv_bytes > in_cells ? "; and " + HumanBytes(need.kv_bytes - in_cells) + " of sliding windows" : ""));
  text += Row("weights", HumanBytes(need.weight_bytes),
              need.hole_bytes > 0 ? "and " + HumanBytes(need.hole_bytes) + " that llama.cpp wants and nobody reads" : "");
  text += Row("compute", HumanBytes(need.compute_bytes), "about, for one step");
  text += Row("total", HumanBytes(need.total()), question.available_bytes ? "of " + HumanBytes(*question.available_bytes) + " available" : "") + "\n";
  const bool fits = !question.available_bytes || need.total() <= *question.available_bytes;
  return text + (fits ? "It fits into memory.\n" : "It does not fit into memory.\n");
}

}  // namespace meshnet::cli
