// Writes a tiny random model that speaks text, for tests in other languages: write_tiny_model [--layers N] [--seed S] [--architecture A] PATH
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tiny/tiny_model.h"

int main(int argc, char** argv) {
  meshnet::tiny::TinyModelOptions options = meshnet::tiny::TextModelOptions();
  std::string path;
  for (int i = 1; i < argc; ++i) {
    bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--layers") == 0 && has_value) {
      options.layers = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else if (std::strcmp(argv[i], "--seed") == 0 && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--architecture") == 0 && has_value) {
      options.architecture = argv[++i];
    } else {
      path = argv[i];
    }
  }
  meshnet::Status written = meshnet::tiny::WriteTinyModel(options, path);
  if (!written.ok()) std::fprintf(stderr, "write_tiny_model: %s\n", written.message().c_str());
  return written.exit_code();
}
