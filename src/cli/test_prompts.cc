#include "cli/test_prompts.h"

#include <iterator>

namespace meshnet::cli {
namespace {

constexpr const char* kSentences[] = {
    "The lighthouse keeper counted the ships that passed in the night and wrote each of them into a book with a green cover. ",
    "In the morning the sea was calm, 17 boats lay in the bay, and the smell of bread came up from the village. ",
    "A good program says what it does; the rest is commentary. def f(x): return x * x + 1 ",
    "Rivers do not hurry, and yet they arrive. Who asked them to? ",
    "On 3 March 1847 a letter arrived that nobody had expected, and with it a key, a map and a very small dog. ",
};

}  // namespace

std::string TestPrompt(const std::string& text, uint32_t index) {
  if (!text.empty()) return index == 0 ? text : text + " (" + std::to_string(index + 1) + ")";
  std::string prompt;
  size_t count = std::size(kSentences);
  for (size_t i = 0; i < 2 + index % 3; ++i) prompt += kSentences[(index + i) % count];
  return prompt + (index < count ? "" : std::to_string(index));
}

std::vector<Token> TestTokens(uint32_t count, uint32_t index, uint32_t vocabulary_size) {
  std::vector<Token> tokens;
  uint64_t state = 0x9e3779b97f4a7c15u * (index + 1);
  for (uint32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<Token>((state >> 33) % (vocabulary_size == 0 ? 1 : vocabulary_size)));
  }
  return tokens;
}

}  // namespace meshnet::cli
