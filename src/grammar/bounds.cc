#include "grammar/bounds.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "grammar/readings.h"

namespace meshnet::grammar {
namespace {

using Kind = Element::Kind;
constexpr size_t kChoicesMax = 64;

bool Ends(Kind kind) { return kind == Kind::kEnd || kind == Kind::kAlternative; }

// Rules that can produce nothing, to the fixed point. llama.cpp looks only at alternatives that are written empty, so it misses left recursion
// behind the others and then expands without end.
std::vector<bool> NullableRules(const std::vector<std::vector<Element>>& rules) {
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
    for (const Element& element : rules[rule]) {
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

// Rules with an alternative that is written empty: behind references to others, llama.cpp does not look for left recursion.
std::vector<bool> WrittenEmpty(const std::vector<std::vector<Element>>& rules) {
  std::vector<bool> empty(rules.size(), false);
  for (size_t rule = 0; rule < rules.size(); ++rule) {
    bool at_beginning = true;
    for (const Element& element : rules[rule]) {
      if (Ends(element.kind) && at_beginning) empty[rule] = true;
      at_beginning = Ends(element.kind);
    }
  }
  return empty;
}

// "The rule can begin with `rule`." `grows`: something follows it, so that a way back to itself piles up stacks without end; a way back without
// that, as in `(a? b?)*`, is harmless, since llama.cpp keeps equal stacks once.
struct Beginning {
  uint32_t rule;
  bool grows;
};

// Per rule: the rules that can stand at its beginning, repeated as often as they do. `passable` rules may be nothing.
std::vector<std::vector<Beginning>> LeftmostRules(const std::vector<std::vector<Element>>& rules, const std::vector<bool>& passable) {
  std::vector<std::vector<Beginning>> leftmost(rules.size());
  for (size_t rule = 0; rule < rules.size(); ++rule) {
    bool at_beginning = true;
    for (size_t i = 0; i < rules[rule].size(); ++i) {
      const Element& element = rules[rule][i];
      if (Ends(element.kind)) {
        at_beginning = true;
      } else if (at_beginning) {
        if (element.kind == Kind::kRule) leftmost[rule].push_back({element.value, !Ends(rules[rule][i + 1].kind)});
        at_beginning = element.kind == Kind::kRule && passable[element.value];
      }
    }
  }
  return leftmost;
}

// Groups of rules that can begin with each other (Tarjan's algorithm without recursion): the number of each rule's group.
std::vector<uint32_t> FindGroups(const std::vector<std::vector<Beginning>>& leftmost) {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> group(leftmost.size(), kNone), index(leftmost.size(), kNone), low(leftmost.size(), 0), open;
  struct Visit {
    uint32_t rule;
    size_t next;
  };
  std::vector<Visit> path;
  uint32_t next_index = 0, next_group = 0;
  const auto enter = [&](uint32_t rule) {
    index[rule] = low[rule] = next_index++;
    open.push_back(rule);
    path.push_back({rule, 0});
  };
  for (uint32_t start = 0; start < leftmost.size(); ++start) {
    if (index[start] == kNone) enter(start);
    while (!path.empty()) {
      Visit& visit = path.back();
      const uint32_t rule = visit.rule;
      if (visit.next < leftmost[rule].size()) {
        const uint32_t child = leftmost[rule][visit.next++].rule;
        if (index[child] == kNone) {
          enter(child);
        } else if (group[child] == kNone) {
          low[rule] = std::min(low[rule], index[child]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().rule] = std::min(low[path.back().rule], low[rule]);
      if (low[rule] != index[rule]) continue;
      for (uint32_t member = kNone; member != rule; open.pop_back()) {
        member = open.back();
        group[member] = next_group;
      }
      ++next_group;
    }
  }
  return group;
}

// llama.cpp's expansion would never end.
Status CheckGrowth(const std::vector<std::vector<Beginning>>& leftmost) {
  const std::vector<uint32_t> group = FindGroups(leftmost);
  for (uint32_t rule = 0; rule < leftmost.size(); ++rule) {
    for (const Beginning& child : leftmost[rule]) {
      if (child.grows && group[child.rule] == group[rule]) {
        return Refused("the grammar cannot be used: a rule can begin with itself (left recursion)");
      }
    }
  }
  return OkStatus();
}

// A rule that neither reaches a character nor can be nothing leaves llama.cpp without any stack, and it asserts that there is one.
Status CheckBeginnings(const std::vector<std::vector<Element>>& rules, const std::vector<std::vector<Beginning>>& leftmost,
                       const std::vector<bool>& nullable) {
  std::vector<std::vector<uint32_t>> begun_by(rules.size());
  std::vector<bool> begins(rules.size(), false);
  std::vector<uint32_t> found;
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    for (const Beginning& child : leftmost[rule]) begun_by[child.rule].push_back(rule);
    bool at_beginning = true;
    for (const Element& element : rules[rule]) {
      const bool reference = element.kind == Kind::kRule;
      if (at_beginning && !reference && !Ends(element.kind) && !begins[rule]) {
        begins[rule] = true;
        found.push_back(rule);
      }
      at_beginning = Ends(element.kind) || (at_beginning && reference && nullable[element.value]);
    }
  }
  while (!found.empty()) {
    const uint32_t rule = found.back();
    found.pop_back();
    for (uint32_t parent : begun_by[rule]) {
      if (!begins[parent]) found.push_back(parent);
      begins[parent] = true;
    }
  }
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    if (!begins[rule] && !nullable[rule]) return Refused("the grammar cannot be used: a rule never comes to a character");
  }
  return OkStatus();
}

// Depth-first over left-most rules without recursion: finds left recursion, the longest chain and the number of ways down.
Status CheckLeftmost(const std::vector<std::vector<Beginning>>& leftmost, const Bounds& bounds) {
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
        const uint32_t child = leftmost[visit.rule][visit.next++].rule;
        if (marks[child] == Mark::kOpen) return Refused("the grammar cannot be used: a rule can begin with itself (left recursion)");
        if (marks[child] == Mark::kNew) {
          marks[child] = Mark::kOpen;
          path.push_back({child, 0});
        }
        continue;
      }
      const uint32_t rule = visit.rule;
      for (const Beginning& child : leftmost[rule]) {
        chain[rule] = std::max(chain[rule], chain[child.rule] + 1);
        ways[rule] = std::min(ways[rule] + ways[child.rule], bounds.visits_max + 1);
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
Status CheckReadings(const Rules& rules, const Bounds& bounds) {
  const Status too_many = Refused("the grammar is too ambiguous: a text can be read in more than " + std::to_string(bounds.readings_max) + " ways at once");
  Readings readings(rules, bounds.readings_max, bounds.probe_work_max);
  std::optional<Readings::Stacks> stacks = readings.Begin();
  if (!stacks) return too_many;
  for (uint32_t step = 0; step < bounds.probe_characters && !readings.exhausted(); ++step) {
    Readings::Stacks worst;
    for (const Input& input : readings.Choices(*stacks, kChoicesMax)) {
      std::optional<Readings::Stacks> next = readings.After(*stacks, input);
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

Status CheckGrammar(std::string_view text, const Bounds& bounds, uint32_t vocabulary_size, const IsToken& is_token) {
  if (text.starts_with("%llguidance")) return Refused("the grammar cannot be used: llguidance is not built in");
  Result<Rules> rules = ReadGrammar(text, bounds.text, vocabulary_size, is_token);
  if (!rules.ok()) return rules.status();
  const Status leftmost = CheckLeftmost(LeftmostRules(rules->rules, WrittenEmpty(rules->rules)), bounds);
  if (!leftmost.ok()) return leftmost;
  const std::vector<bool> nullable = NullableRules(rules->rules);
  const std::vector<std::vector<Beginning>> beginnings = LeftmostRules(rules->rules, nullable);
  const Status growth = CheckGrowth(beginnings);
  if (!growth.ok()) return growth;
  const Status begun = CheckBeginnings(rules->rules, beginnings, nullable);
  if (!begun.ok()) return begun;
  return CheckReadings(*rules, bounds);
}

}  // namespace meshnet::grammar
