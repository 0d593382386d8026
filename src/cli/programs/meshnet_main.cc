// `meshnet VERB …`.
#include <iterator>
#include <string>

#include "base/status.h"
#include "cli/build_description.h"
#include "cli/process_start.h"
#include "cli/report.h"
#include "cli/verbs.h"

namespace {

struct Verb {
  const char* name;
  int (*run)(int, char**);
  const char* summary;
};

constexpr Verb kVerbs[] = {
    {"serve", meshnet::cli::Serve, "cut a model, start its workers on this machine, an OpenAI gateway in front"},
    {"run", meshnet::cli::Run, "the same for one answer (-p) or a chat in the terminal"},
    {"chat", meshnet::cli::Chat, "chat in the terminal with any running gateway"},
    {"verify", meshnet::cli::Verify, "proof of split: every logit against one llama.cpp context"},
    {"inspect", meshnet::cli::Inspect, "what a GGUF or shard is, and where it can be cut"},
    {"cut", meshnet::cli::Cut, "write shard files"},
    {"worker", meshnet::cli::Worker, "one shard worker"},
    {"gateway", meshnet::cli::Gateway, "the gateway over given workers"},
    {"certificates", meshnet::cli::Certificates, "a small certificate authority and certificates for mutual TLS"},
    {"status", meshnet::cli::ShowStatus, "a gateway's route, workers and sessions"},
    {"bench", meshnet::cli::Bench, "speed through the workers against one llama.cpp context"},
};

std::string Help() {
  std::string text = "meshnet runs one GGUF model over several shard workers.\n\nusage: meshnet VERB [flags]\n\n";
  for (const Verb& verb : kVerbs) text += "  " + std::string(verb.name) + std::string(14 - std::string(verb.name).size(), ' ') + verb.summary + "\n";
  return text + "\n`meshnet VERB --help` lists the flags of a verb; `meshnet --version` says what this binary was built from.\n";
}

int Dispatch(int argc, char** argv) {
  std::string word = argc > 1 ? argv[1] : "";
  if (word == "--help" || word == "-h" || word == "help") {
    meshnet::cli::Print(Help());
    return 0;
  }
  if (word == "--version") {
    meshnet::cli::Print("meshnet " + meshnet::cli::BuildDescription() + "\n");
    return 0;
  }
  for (const Verb& verb : kVerbs) {
    if (word == verb.name) return verb.run(argc - 2, argv + 2);
  }
  meshnet::cli::Say(word.empty() ? "a verb is needed" : "unknown verb \"" + word + "\"");
  std::string names;
  for (const Verb& verb : kVerbs) names += (names.empty() ? "" : "|") + std::string(verb.name);
  meshnet::cli::Say("usage: meshnet " + names + " [flags]; `meshnet --help` explains them");
  return static_cast<int>(meshnet::StatusCode::kUsage);
}

}  // namespace

int main(int argc, char** argv) { return meshnet::cli::RunMain(argc, argv, Dispatch); }
