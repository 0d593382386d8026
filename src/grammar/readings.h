// The stacks that llama.cpp keeps for a grammar: one per way in which the text so far can be read. Bounded where llama.cpp is not. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "grammar/syntax.h"

namespace meshnet::grammar {

// One input to a grammar: a character, or a token that a rule names.
struct Input {
  bool token = false;
  uint32_t value = 0;
  friend auto operator<=>(const Input&, const Input&) = default;
};

class Readings {
 public:
  // Positions into all rules written one after the other, innermost last; empty: the grammar may end here.
  using Stack = std::vector<uint32_t>;
  using Stacks = std::set<Stack>;

  // `rules` must have no left recursion and is copied.
  Readings(const Rules& rules, size_t readings_max, uint64_t work_max);

  // Nothing: more than `readings_max`. Out of work is seen by `exhausted()`, and then the result means nothing.
  std::optional<Stacks> Begin();
  std::optional<Stacks> After(const Stacks& stacks, const Input& input);
  // Inputs that matter to the tops of these stacks: where character ranges begin or have just ended, and named tokens. At most `limit`.
  std::vector<Input> Choices(const Stacks& stacks, size_t limit) const;

  bool exhausted() const { return work_left_ == 0; }

 private:
  bool Expand(Stack stack, Stacks& out);
  bool EndsAt(uint32_t position) const;
  // Position behind the terminal at `position` when it takes `input`.
  std::optional<uint32_t> Take(uint32_t position, const Input& input) const;

  std::vector<Element> elements_;
  std::vector<uint32_t> starts_;  // of each rule
  uint32_t root_ = 0;
  size_t readings_max_;
  uint64_t work_left_;
};

}  // namespace meshnet::grammar
