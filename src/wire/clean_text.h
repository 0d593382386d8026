// Text of a peer or a file made fit for terminals, logs and proto strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace meshnet {

// At most `bytes_max` bytes, cut between characters; control characters become blanks, bytes that are no UTF-8 become '?'.
std::string CleanText(std::string_view text, size_t bytes_max);

}  // namespace meshnet
