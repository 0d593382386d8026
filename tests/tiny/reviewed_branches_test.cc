// A tiny model cannot show that a large one of the same architecture is cut exactly: code may branch on the layer's index, the layer count
// or the vocabulary size. Every such line of the pinned sources behind a certified architecture stands in reviewed_branches.txt with the
// answer the cut rules give it; a line that is not there fails here and asks for a review.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gguf/architecture_table.h"

namespace meshnet::tiny {
namespace {

// Sources whose name is not the architecture's with '_' as '-', and those that a model shares.
const std::map<std::string, std::vector<std::string>> kSources = {
    {"gpt-oss", {"openai-moe"}},
    {"granitemoe", {"granite-moe", "granite"}},
    {"minicpm", {"minicpm", "granite"}},
    {"mistral4", {"mistral4", "deepseek2"}},
    {"phimoe", {"phimoe", "phi3"}},
};

std::vector<std::string> SourcesOf(const std::string& architecture) {
  const auto found = kSources.find(architecture);
  if (found != kSources.end()) return found->second;
  std::string name = architecture;
  std::replace(name.begin(), name.end(), '_', '-');
  return {name};
}

std::string Trimmed(const std::string& line) {
  static const std::regex blanks("[ \t]+");
  std::string text = std::regex_replace(line, blanks, " ");
  if (!text.empty() && text.front() == ' ') text.erase(0, 1);
  if (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// Branches that need an answer; plain loops over layers, labels for people and the row selection at the last layer do not.
bool NeedsReview(const std::string& line) {
  static const std::regex asks(
      R"(n_layer|\bil *[%<>=]=?|\bi *[%<>]=? *[(a-z]|\btype *[!=]=|n_vocab *[!=<>]|LLM_TYPE_[0-9A-Z_]+\b(?!;)|is_swa|is_recr)");
  static const std::regex trivial(
      R"(^for \(int (i|il) = 0; \w+ < n_layer; (\+\+\w+|\w+\+\+)\) \{$|^if \(il == n_layer - 1 && inp_out_ids\) \{$)"
      R"(|^switch \(hparams\.n_layer\(\)\) \{$|^case \d+: type = .*LLM_TYPE_\w+; break;( *//.*)?$|^default: type = LLM_TYPE_UNKNOWN;$)"
      R"(|^ml\.get_key_or_arr\(LLM_KV_EXPERT_FEED_FORWARD_LENGTH, hparams\.n_ff_exp_arr, hparams\.n_layer_all(, false)?\);$|^//)");
  return std::regex_search(line, asks) && !std::regex_search(line, trivial);
}

// "file<TAB>line" of the reviewed list; the answer behind a second tab is for people.
std::set<std::string> ReviewedLines() {
  std::ifstream in(MESHNET_REVIEWED_BRANCHES);
  std::set<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find('\t');
    const size_t second = first == std::string::npos ? first : line.find('\t', first + 1);
    if (line.empty() || line[0] == '#') continue;
    EXPECT_NE(second, std::string::npos) << "no answer: " << line;
    lines.insert(line.substr(0, second));
  }
  return lines;
}

TEST(ReviewedBranchesTest, EveryBranchOnLayersHasAnAnswer) {
  const std::set<std::string> reviewed = ReviewedLines();
  std::set<std::string> files, seen;
  for (const gguf::ArchitectureRule& rule : gguf::CertifiedArchitectures()) {
    for (const std::string& source : SourcesOf(std::string(rule.name))) files.insert(source + ".cpp");
  }
  for (const std::string& file : files) {
    std::ifstream in(std::string(MESHNET_LLAMA_DIR) + "/src/models/" + file);
    ASSERT_TRUE(in.good()) << "no source " << file << " in the pinned tree";
    for (std::string line; std::getline(in, line);) {
      const std::string text = Trimmed(line);
      if (!NeedsReview(text)) continue;
      seen.insert(file + '\t' + text);
      EXPECT_TRUE(reviewed.contains(file + '\t' + text)) << "review this branch, teach the cut rules its answer, then list it: " << file << ": " << text;
    }
  }
  for (const std::string& line : reviewed) EXPECT_TRUE(seen.contains(line)) << "no longer in the pinned sources: " << line;
}

}  // namespace
}  // namespace meshnet::tiny
