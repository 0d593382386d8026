// Executes golden transcripts and compares their answers: kv_golden [--rewrite] FILE... A changed answer is shown; --rewrite writes it, and the
// diff is reviewed like code.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "kv_transcript.h"

namespace {

enum class Mode { kCompare, kRewrite };

bool CheckFile(const std::string& path, Mode mode) {
  std::ifstream file(path);
  if (!file) {
    std::cerr << path << ": cannot be read\n";
    return false;
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::string problem;
  const std::vector<std::string> answers = meshnet::kv::RewriteTranscript(lines, problem);
  bool good = problem.empty();
  if (!good) std::cerr << path << ": " << problem << "\n";
  if (mode == Mode::kRewrite) {
    std::ofstream out(path);
    for (const std::string& line : answers) out << line << "\n";
    return good && out.good();
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] == answers[i]) continue;
    good = false;
    std::cerr << path << ":" << i + 1 << "\n  expected " << lines[i] << "\n  got      " << answers[i] << "\n";
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Mode mode = Mode::kCompare;
  bool good = true;
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--rewrite") {
      mode = Mode::kRewrite;
    } else {
      good = CheckFile(argument, mode) && good;
      ++files;
    }
  }
  if (files == 0) {
    std::cerr << "usage: kv_golden [--rewrite] FILE...\n";
    return 2;
  }
  return good ? 0 : 1;
}
