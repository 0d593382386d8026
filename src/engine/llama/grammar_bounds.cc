#include "engine/llama/grammar_bounds.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/llama/grammar_readings.h"

namespace meshnet {
namespace {

using Kind = GrammarElement::Kind;
constexpr size_t kChoicesMax = 64;

bool Ends(Kind kind) { return kind == Kind::kEnd || kind == Kind::kAlternative; }

// Rules that can produce nothing, to the fixed point. llama.cpp looks only at alternatives that are written empty, so it misses left recursion
// behind the others and then expands without end.
std::vector<bool> NullableRules(const std::vector<std::vector<GrammarElement>>& rules) {
  struct Alternative {
    uint32_t rule;
    size_t waiting;  // references not yet known to be nullable
  };
  std::vector<Alternative> alternatives;                 // those made of references only
  std::vector<std::vector<uint32_t>> used_in(rules.size());
  std::vector<bool> nullable(rules.size(), false);
  std::vector<uint32_t> found;
  auto mark = [&](uint32_t rule) {
    if (!nullable[rule]) found.push_back(rule);
    nullable[rule] = true;
  };
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    std::vector<uint32_t> references;
    bool references_only = true;
    for (const GrammarElement& element : rules[rule]) {
      if (element.kind == Kind::kRule) {
        references.push_back(element.value);
      } else if (!Ends(element.kind)) {
        references_only = false;
      } else {
        if (references_only && references.empty()) mark(rule);
        if (references_only && !references.empty()) {
          for (uint32_t reference : references) used_in[reference].push_back(static_cast<uint32_t>(alternatives.size()));
          alternatives.push_back({rule, references.size()});
        }
        references.clear();
        references_only = true;
      }
    }
  }
  while (!found.empty()) {
    const uint32_t rule = found.back();
    found.pop_back();
    for (uint32_t index : used_in[rule]) {
      if (--alternatives[index].waiting == 0) mark(alternatives[index].rule);
    }
  }
  return nullable;
}

// Per rule: the rules that can stand at its beginning, repeated as often as they do.
std::vector<std::vector<uint32_t>> LeftmostRules(const std::vector<std::vector<GrammarElement>>& rules) {
  const std::vector<bool> nullable = NullableRules(rules);
  std::vector<std::vector<uint32_t>> leftmost(rules.size());
  for (size_t rule = 0; rule < rules.size(); ++rule) {
    bool at_beginning = true;
    for (const GrammarElement& element : rules[rule]) {
      if (Ends(element.kind)) {
        at_beginning = true;
      } else if (at_beginning) {
        if (element.kind == Kind::kRule) leftmost[rule].push_back(element.value);
        at_beginning = element.kind == Kind::kRule && nullable[element.value];
      }
    }
  }
  return leftmost;
}

// Depth-first over left-most rules without recursion: finds left recursion, the longest chain and the number of ways down.
Status CheckLeftmost(const std::vector<std::vector<uint32_t>>& leftmost, const GrammarBounds& bounds) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  struct Visit {
    uint32_t rule;
    size_t next;
  };
  const size_t count = leftmost.size();
  std::vector<Mark> marks(count, Mark::kNew);
  std::vector<uint32_t> chain(count, 1);
  std::vector<uint64_t> ways(count, 1);
  std::vector<Visit> path;
  uint64_t visits = 0;
  for (uint32_t start = 0; start < count; ++start) {
    if (marks[start] != Mark::kNew) continue;
    path.push_back({start, 0});
    marks[start] = Mark::kOpen;
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next < leftmost[visit.rule].size()) {
        const uint32_t child = leftmost[visit.rule][visit.next++];
        if (marks[child] == Mark::kOpen) return Refused("the grammar cannot be used: a rule can begin with itself (left recursion)");
        if (marks[child] == Mark::kNew) {
          marks[child] = Mark::kOpen;
          path.push_back({child, 0});
        }
        continue;
      }
      const uint32_t rule = visit.rule;
      for (uint32_t child : leftmost[rule]) {
        chain[rule] = std::max(chain[rule], chain[child] + 1);
        ways[rule] = std::min(ways[rule] + ways[child], bounds.visits_max + 1);
      }
      if (chain[rule] > bounds.chain_max) {
        return Refused("the grammar cannot be used: more than " + std::to_string(bounds.chain_max) + " rules begin with each other");
      }
      marks[rule] = Mark::kDone;
      path.pop_back();
    }
    visits += ways[start];
    if (visits > bounds.visits_max) return Refused("the grammar cannot be used: its rules begin with each other in too many ways");
  }
  return OkStatus();
}

// Follows the text that keeps the most readings alive. A grammar whose readings double with a character is found within a few of them.
Status CheckReadings(const GrammarRules& rules, const GrammarBounds& bounds) {
  const Status too_many = Refused("the grammar is too ambiguous: a text can be read in more than " + std::to_string(bounds.readings_max) + " ways at once");
  GrammarReadings readings(rules, bounds.readings_max, bounds.probe_work_max);
  std::optional<GrammarReadings::Stacks> stacks = readings.Begin();
  if (!stacks) return too_many;
  for (uint32_t step = 0; step < bounds.probe_characters && !readings.exhausted(); ++step) {
    GrammarReadings::Stacks worst;
    for (const GrammarInput& input : readings.Choices(*stacks, kChoicesMax)) {
      std::optional<GrammarReadings::Stacks> next = readings.After(*stacks, input);
      if (!next) return too_many;
      if (readings.exhausted()) return OkStatus();
      if (next->size() > worst.size()) worst = std::move(*next);
    }
    if (worst.empty()) return OkStatus();
    stacks = std::move(worst);
  }
  return OkStatus();
}

}  // namespace

Status CheckGrammar(std::string_view text, const GrammarBounds& bounds, const IsToken& is_token) {
  if (text.starts_with("%llguidance")) return Refused("the grammar cannot be used: llguidance is not built in");
  Result<GrammarRules> rules = ReadGrammar(text, bounds.text, is_token);
  if (!rules.ok()) return rules.status();
  const Status leftmost = CheckLeftmost(LeftmostRules(rules->rules), bounds);
  if (!leftmost.ok()) return leftmost;
  return CheckReadings(*rules, bounds);
}

}  // namespace meshnet
