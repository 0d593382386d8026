// Watches how deep the brackets of a generated text nest, for parsers that recurse along them. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace meshnet::text {

class NestingGuard {
 public:
  explicit NestingGuard(size_t depth_max) : depth_max_(depth_max) {}

  // False once JSON anywhere in the text so far may nest deeper than the bound. Where JSON begins is not known, so the brackets are counted for
  // both cases, the text beginning inside a string and outside.
  bool Add(std::string_view text);

 private:
  struct Count {
    bool in_string = false;
    bool escaped = false;
    size_t depth = 0;
  };
  size_t depth_max_;
  bool exceeded_ = false;
  std::array<Count, 2> counts_{Count{false, false, 0}, Count{true, false, 0}};
};

}  // namespace meshnet::text
