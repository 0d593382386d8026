#include "grammar/readings.h"

#include <algorithm>
#include <utility>

namespace meshnet::grammar {
namespace {
using Kind = Element::Kind;
}

Readings::Readings(const Rules& rules, size_t readings_max, uint64_t work_max)
    : root_(rules.root), readings_max_(readings_max), work_left_(work_max) {
  for (const auto& rule : rules.rules) {
    starts_.push_back(static_cast<uint32_t>(elements_.size()));
    elements_.insert(elements_.end(), rule.begin(), rule.end());
  }
}

bool Readings::EndsAt(uint32_t position) const {
  return elements_[position].kind == Kind::kEnd || elements_[position].kind == Kind::kAlternative;
}

// Replaces a rule on top by each of its alternatives until every top is a terminal, as llama_grammar_advance_stack does.
bool Readings::Expand(Stack stack, Stacks& out) {
  std::vector<Stack> todo = {std::move(stack)};
  Stacks seen;
  while (!todo.empty()) {
    auto [entry, added] = seen.insert(std::move(todo.back()));
    todo.pop_back();
    if (!added) continue;
    const Stack& current = *entry;
    const uint64_t cost = current.size() + 1;
    if (work_left_ < cost) {
      work_left_ = 0;
      return true;
    }
    work_left_ -= cost;
    if (current.empty() || elements_[current.back()].kind != Kind::kRule) {
      out.insert(current);
      if (out.size() > readings_max_) return false;
      continue;
    }
    if (seen.size() > 4 * readings_max_) return false;
    const uint32_t top = current.back();
    uint32_t at = starts_[elements_[top].value];
    while (true) {
      Stack next(current.begin(), current.end() - 1);
      if (!EndsAt(top + 1)) next.push_back(top + 1);
      if (!EndsAt(at)) next.push_back(at);
      todo.push_back(std::move(next));
      while (!EndsAt(at)) ++at;
      if (elements_[at].kind == Kind::kEnd) break;
      ++at;
    }
  }
  return true;
}

std::optional<Readings::Stacks> Readings::Begin() {
  Stacks stacks;
  uint32_t at = starts_[root_];
  while (true) {
    Stack stack;
    if (!EndsAt(at)) stack.push_back(at);
    if (!Expand(std::move(stack), stacks)) return std::nullopt;
    while (!EndsAt(at)) ++at;
    if (elements_[at].kind == Kind::kEnd) break;
    ++at;
  }
  return stacks;
}

std::optional<uint32_t> Readings::Take(uint32_t position, const Input& input) const {
  const Element& first = elements_[position];
  if (first.kind == Kind::kToken || first.kind == Kind::kTokenNot) {
    if (!input.token || (first.value == input.value) != (first.kind == Kind::kToken)) return std::nullopt;
    return position + 1;
  }
  if (input.token) return std::nullopt;
  bool found = false;
  uint32_t at = position;
  do {
    if (elements_[at].kind == Kind::kAny) {
      found = true;
      ++at;
    } else if (elements_[at + 1].kind == Kind::kRangeEnd) {
      found = found || (elements_[at].value <= input.value && input.value <= elements_[at + 1].value);
      at += 2;
    } else {
      found = found || elements_[at].value == input.value;
      ++at;
    }
  } while (elements_[at].kind == Kind::kCharacterMore);
  if (found == (first.kind == Kind::kCharacterNot)) return std::nullopt;
  return at;
}

std::optional<Readings::Stacks> Readings::After(const Stacks& stacks, const Input& input) {
  Stacks after;
  for (const Stack& stack : stacks) {
    if (stack.empty()) continue;
    const std::optional<uint32_t> behind = Take(stack.back(), input);
    if (!behind) continue;
    Stack next(stack.begin(), stack.end() - 1);
    if (!EndsAt(*behind)) next.push_back(*behind);
    if (!Expand(std::move(next), after)) return std::nullopt;
    if (exhausted()) break;
  }
  return after;
}

std::vector<Input> Readings::Choices(const Stacks& stacks, size_t limit) const {
  std::set<Input> choices;
  for (const Stack& stack : stacks) {
    if (choices.size() >= limit) break;
    if (stack.empty()) continue;
    uint32_t at = stack.back();
    const Kind kind = elements_[at].kind;
    if (kind == Kind::kToken || kind == Kind::kTokenNot) {
      choices.insert({true, elements_[at].value});
      if (kind == Kind::kTokenNot) choices.insert({true, elements_[at].value + 1});
      continue;
    }
    if (kind == Kind::kAny) choices.insert({false, 'a'});
    for (bool first = true; (first && kind != Kind::kAny) || elements_[at].kind == Kind::kCharacterMore; first = false) {
      const bool range = elements_[at + 1].kind == Kind::kRangeEnd;
      choices.insert({false, elements_[at].value});
      if (kind == Kind::kCharacterNot) choices.insert({false, (range ? elements_[at + 1].value : elements_[at].value) + 1});
      at += range ? 2 : 1;
    }
  }
  std::vector<Input> result(choices.begin(), choices.end());
  if (result.size() > limit) result.resize(limit);
  return result;
}

}  // namespace meshnet::grammar
