#include "text/nesting_guard.h"

namespace meshnet::text {

bool NestingGuard::Add(std::string_view text) {
  for (char c : text) {
    for (Count& count : counts_) {
      if (count.escaped) {
        count.escaped = false;
      } else if (c == '"') {
        count.in_string = !count.in_string;
      } else if (count.in_string) {
        count.escaped = c == '\\';
      } else if (c == '[' || c == '{') {
        if (++count.depth > depth_max_) exceeded_ = true;
      } else if ((c == ']' || c == '}') && count.depth > 0) {
        --count.depth;
      }
    }
  }
  return !exceeded_;
}

}  // namespace meshnet::text
