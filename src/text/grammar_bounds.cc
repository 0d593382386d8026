#include "text/grammar_bounds.h"

#include <algorithm>

namespace meshnet::text {
namespace {

using Element = GrammarRules::Element;
using Kind = GrammarRules::Kind;

constexpr uint64_t kSaturated = 1ull << 40;
uint64_t SaturatedSum(uint64_t a, uint64_t b) { return std::min(kSaturated, a + b); }

// "rule may begin with target". `grows`: something follows the target, so that a cycle would pile up parse stacks for ever.
struct Edge {
  uint32_t target = 0;
  bool grows = false;
};
using Edges = std::vector<std::vector<Edge>>;

// Rules with an alternative of no elements at all: the only ones that llama.cpp's search for left recursion looks behind.
std::vector<bool> FindDirectlyEmpty(const GrammarRules& grammar) {
  std::vector<bool> empty(grammar.rules.size());
  for (size_t rule = 0; rule < grammar.rules.size(); ++rule) {
    bool at_start = true;
    for (const Element& element : grammar.rules[rule]) {
      if (element.kind == Kind::kAlternative && at_start) empty[rule] = true;
      at_start = element.kind == Kind::kAlternative;
    }
    if (at_start) empty[rule] = true;
  }
  return empty;
}

// Rules that can produce nothing, in time linear in the grammar: each alternative counts what still keeps it from being empty.
std::vector<bool> FindNullable(const GrammarRules& grammar) {
  struct Alternative {
    uint32_t rule = 0;
    size_t obstacles = 0;
  };
  std::vector<Alternative> alternatives;
  std::vector<std::vector<size_t>> users(grammar.rules.size());
  for (uint32_t rule = 0; rule < grammar.rules.size(); ++rule) {
    alternatives.push_back({rule, 0});
    for (const Element& element : grammar.rules[rule]) {
      if (element.kind == Kind::kAlternative) {
        alternatives.push_back({rule, 0});
        continue;
      }
      ++alternatives.back().obstacles;
      if (element.kind == Kind::kReference) users[element.value].push_back(alternatives.size() - 1);
    }
  }
  std::vector<bool> nullable(grammar.rules.size());
  std::vector<uint32_t> todo;
  const auto settle = [&](const Alternative& alternative) {
    if (alternative.obstacles > 0 || nullable[alternative.rule]) return;
    nullable[alternative.rule] = true;
    todo.push_back(alternative.rule);
  };
  for (const Alternative& alternative : alternatives) settle(alternative);
  while (!todo.empty()) {
    const uint32_t rule = todo.back();
    todo.pop_back();
    for (size_t user : users[rule]) {
      --alternatives[user].obstacles;
      settle(alternatives[user]);
    }
  }
  return nullable;
}

// One edge for each place where `see_behind` lets a rule begin with another.
Edges FindBeginnings(const GrammarRules& grammar, const std::vector<bool>& see_behind) {
  Edges edges(grammar.rules.size());
  for (size_t rule = 0; rule < grammar.rules.size(); ++rule) {
    const std::vector<Element>& elements = grammar.rules[rule];
    bool open = true;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (elements[i].kind == Kind::kAlternative) {
        open = true;
      } else if (open) {
        const bool reference = elements[i].kind == Kind::kReference;
        const bool last = i + 1 == elements.size() || elements[i + 1].kind == Kind::kAlternative;
        if (reference) edges[rule].push_back({elements[i].value, !last});
        open = reference && see_behind[elements[i].value];
      }
    }
  }
  return edges;
}

// Strongly connected components by Tarjan's algorithm, without recursion. Components are numbered so that edges lead to smaller numbers.
std::vector<uint32_t> FindComponents(const Edges& edges) {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> component(edges.size(), kNone), index(edges.size(), kNone), low(edges.size(), 0), open;
  struct Visit {
    uint32_t rule;
    size_t next;
  };
  std::vector<Visit> path;
  uint32_t next_index = 0, next_component = 0;
  const auto enter = [&](uint32_t rule) {
    index[rule] = low[rule] = next_index++;
    open.push_back(rule);
    path.push_back({rule, 0});
  };
  for (uint32_t start = 0; start < edges.size(); ++start) {
    if (index[start] != kNone) continue;
    enter(start);
    while (!path.empty()) {
      Visit& visit = path.back();
      const uint32_t rule = visit.rule;
      if (visit.next < edges[rule].size()) {
        const uint32_t target = edges[rule][visit.next++].target;
        if (index[target] == kNone) {
          enter(target);
        } else if (component[target] == kNone) {
          low[rule] = std::min(low[rule], index[target]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().rule] = std::min(low[path.back().rule], low[rule]);
      if (low[rule] != index[rule]) continue;
      for (uint32_t member = kNone; member != rule;) {
        member = open.back();
        open.pop_back();
        component[member] = next_component;
      }
      ++next_component;
    }
  }
  return component;
}

// Rules in an order in which each comes after all that it leads to.
std::vector<uint32_t> OrderByComponent(const std::vector<uint32_t>& component) {
  std::vector<uint32_t> order(component.size());
  for (uint32_t rule = 0; rule < order.size(); ++rule) order[rule] = rule;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return component[a] < component[b]; });
  return order;
}

std::string LeftRecursive(const GrammarRules& grammar, uint32_t rule) {
  const std::string& name = grammar.names[rule];
  return name.empty() ? "is left recursive, or repeats something that may be empty" : "is left recursive in the rule \"" + name.substr(0, 100) + "\"";
}

// llama.cpp's search for left recursion: recursive, and without a memory of what it has seen.
std::optional<std::string> CheckSearch(const GrammarRules& grammar, const GrammarBounds& bounds) {
  const Edges edges = FindBeginnings(grammar, FindDirectlyEmpty(grammar));
  const std::vector<uint32_t> component = FindComponents(edges);
  std::vector<uint64_t> chain(edges.size(), 1), visits(edges.size(), 1);
  uint64_t visits_in_all = 0;
  for (uint32_t rule : OrderByComponent(component)) {
    for (const Edge& edge : edges[rule]) {
      if (component[edge.target] == component[rule]) return LeftRecursive(grammar, rule);
      chain[rule] = std::max(chain[rule], chain[edge.target] + 1);
      visits[rule] = SaturatedSum(visits[rule], visits[edge.target]);
    }
    visits_in_all = SaturatedSum(visits_in_all, visits[rule]);
    if (chain[rule] > bounds.chain_max) return "has more than " + std::to_string(bounds.chain_max) + " rules that begin with each other";
    if (visits_in_all > bounds.visits_max) return "is too ambiguous: too many alternatives begin with the same rules";
  }
  return std::nullopt;
}

// The parse stacks that llama.cpp makes when a rule begins. Cycles that do not grow are finite, since equal stacks are kept once.
std::optional<std::string> CheckStacks(const GrammarRules& grammar, const GrammarBounds& bounds) {
  const std::vector<bool> nullable = FindNullable(grammar);
  const Edges edges = FindBeginnings(grammar, nullable);
  const std::vector<uint32_t> component = FindComponents(edges);
  std::vector<uint64_t> stacks(edges.size(), 0);  // by component
  for (uint32_t rule : OrderByComponent(component)) {
    uint64_t own = nullable[rule] ? 1 : 0;
    // At most one terminal begins each alternative.
    own += 1 + static_cast<uint64_t>(std::count_if(grammar.rules[rule].begin(), grammar.rules[rule].end(),
                                                   [](const Element& element) { return element.kind == Kind::kAlternative; }));
    for (const Edge& edge : edges[rule]) {
      if (component[edge.target] != component[rule]) {
        own = SaturatedSum(own, stacks[component[edge.target]]);
      } else if (edge.grows) {
        return LeftRecursive(grammar, rule);
      }
    }
    stacks[component[rule]] = SaturatedSum(stacks[component[rule]], own);
    if (stacks[component[rule]] > bounds.stacks_max) return "is too ambiguous: too many alternatives begin with each other";
  }
  return std::nullopt;
}

}  // namespace

GrammarReport CheckGrammar(std::string_view grammar, uint32_t vocabulary_size, const GrammarBounds& bounds) {
  GrammarRules rules;
  GrammarReport report;
  report.fault = ReadGrammar(grammar, vocabulary_size, bounds, &rules);
  if (!report.fault) report.fault = CheckSearch(rules, bounds);
  if (!report.fault) report.fault = CheckStacks(rules, bounds);
  report.token_texts = std::move(rules.token_texts);
  return report;
}

}  // namespace meshnet::text
