// A tiny model cannot show that a large one of the same architecture is cut exactly: code may branch on the layer's index, the layer count,
// the model type, the vocabulary size or the set of window layers. Every such line of the pinned sources behind a certified architecture, its own
// and those that all share, stands in reviewed_branches.txt with the answer the cut rules give it; a line that is not there fails here.
#include <gtest/gtest.h>

#include <algorithm>
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

struct Branches {
  std::regex asks, trivial;
  bool NeedsReview(const std::string& line) const { return std::regex_search(line, asks) && !std::regex_search(line, trivial); }
};

// Branches that need an answer in src/models; plain loops over layers, labels for people and the row selection at the last layer do not.
const Branches& InModels() {
  static const Branches branches = {
      std::regex(R"(n_layer|\bil *[%<>=]=?|\bi *[%<>]=? *[(a-z]|\btype *[!=]=|n_vocab *[!=<>]|LLM_TYPE_[0-9A-Z_]+\b(?!;)|is_swa|is_recr)"),
      std::regex(R"(^for \(int (i|il) = 0; \w+ < n_layer; (\+\+\w+|\w+\+\+)\) \{$|^if \(il == n_layer - 1 && inp_out_ids\) \{$)"
                 R"(|^switch \(hparams\.n_layer\(\)\) \{$|^case \d+: type = .*LLM_TYPE_\w+; break;( *//.*)?$|^default: type = LLM_TYPE_UNKNOWN;$)"
                 R"(|^ml\.get_key_or_arr\(LLM_KV_EXPERT_FEED_FORWARD_LENGTH, hparams\.n_ff_exp_arr, hparams\.n_layer_all(, false)?\);$|^//)")};
  return branches;
}

// Sources behind every architecture, and what needs an answer there; besides the above, logging, names for people and checks of bounds do not.
constexpr const char* kSharedSources[] = {"llama-model.cpp",   "llama-hparams.cpp",  "llama-graph.cpp",
                                          "llama-context.cpp", "llama-kv-cache.cpp", "llama-kv-cache-iswa.cpp"};
const Branches& InSharedSources() {
  static const Branches branches = {
      std::regex(R"(n_layer|\bil *(%|[<>!=]=|[<>])|\btype *[!=]= *LLM_TYPE|n_vocab *([!=]=|[<>])|LLM_TYPE_[0-9A-Z_]+\b|is_swa|is_recr)"),
      std::regex(R"(^//|^LLAMA_LOG|^case LLM_TYPE_\w+: return ".*";$|^if \(il < n_layer_all\) \{$|^GGML_ABORT\(|^GGML_ASSERT\(.*n_layer_all)"
                 R"(|^for \((int|uint32_t|size_t|int32_t) il = 0; il < (hparams\.|model->hparams\.)?n_layer(_all)?(\(\))?; (\+\+il|il\+\+)\) \{$)")};
  return branches;
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

// Every branch of one source, as "file<TAB>line".
std::set<std::string> BranchesOf(const std::string& folder, const std::string& file, const Branches& branches) {
  std::ifstream in(std::string(MESHNET_LLAMA_DIR) + folder + file);
  EXPECT_TRUE(in.good()) << "no source " << file << " in the pinned tree";
  std::set<std::string> found;
  for (std::string line; std::getline(in, line);) {
    const std::string text = Trimmed(line);
    if (branches.NeedsReview(text)) found.insert(file + '\t' + text);
  }
  return found;
}

TEST(ReviewedBranchesTest, EveryBranchOnLayersHasAnAnswer) {
  std::set<std::string> files, seen;
  for (const gguf::ArchitectureRule& rule : gguf::CertifiedArchitectures()) {
    for (const std::string& source : SourcesOf(std::string(rule.name))) files.insert(source + ".cpp");
  }
  for (const std::string& file : files) seen.merge(BranchesOf("/src/models/", file, InModels()));
  for (const char* file : kSharedSources) seen.merge(BranchesOf("/src/", file, InSharedSources()));
  const std::set<std::string> reviewed = ReviewedLines();
  for (const std::string& line : seen) {
    EXPECT_TRUE(reviewed.contains(line)) << "review this branch, teach the cut rules its answer, then list it: " << line;
  }
  for (const std::string& line : reviewed) EXPECT_TRUE(seen.contains(line)) << "no longer in the pinned sources: " << line;
}

}  // namespace
}  // namespace meshnet::tiny
