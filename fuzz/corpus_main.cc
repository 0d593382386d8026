// Runs a fuzz entry point without libFuzzer: NAME_fuzz FOLDER|FILE... [--mutations N]. Every file as it is, then mutations of it that are the same
// on every machine. An input that ends the process is left in the file "crash-input" of the working folder and named on stderr.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

// What runs now, for the signal handler.
char current_name[512];
std::string current_input;

void Write(int fd, const char* bytes, size_t size) { (void)!write(fd, bytes, size); }

// Only calls that are allowed in a handler.
void OnCrash(int) {
  Write(2, "crashed on ", 11);
  Write(2, current_name, std::strlen(current_name));
  Write(2, ", which is now in crash-input\n", 30);
  const int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  Write(file, current_input.data(), current_input.size());
  _exit(1);
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The engine's numbers are fixed by the standard; its distributions are not, so they are not used.
size_t Below(std::mt19937& random, size_t bound) { return bound == 0 ? 0 : random() % bound; }

// A few small changes: what a parser meets when one field lies.
std::string Mutate(std::string input, const std::vector<std::string>& others, std::mt19937& random) {
  constexpr uint64_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
  for (size_t changes = 1 + Below(random, 4); changes > 0; --changes) {
    const size_t at = Below(random, input.size());
    switch (Below(random, 7)) {
      case 0: if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << Below(random, 8))); break;
      case 1: if (!input.empty()) input[at] = static_cast<char>(random()); break;
      case 2: input.resize(at); break;
      case 3: input.insert(at, input.substr(Below(random, input.size()), 1 + Below(random, 32))); break;
      case 4: input.erase(at, 1 + Below(random, 16)); break;
      case 5: {
        const uint64_t edge = kEdges[Below(random, std::size(kEdges))];
        const size_t bytes = size_t{1} << Below(random, 4);
        if (input.size() >= at + bytes) std::memcpy(input.data() + at, &edge, bytes);
        break;
      }
      case 6: {
        const std::string& other = others[Below(random, others.size())];
        input.replace(at, std::string::npos, other.substr(std::min(at, other.size())));
        break;
      }
    }
  }
  return input;
}

void Run(const std::string& name, std::string input) {
  std::snprintf(current_name, sizeof current_name, "%s", name.c_str());
  current_input = std::move(input);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current_input.data()), current_input.size());
}

}  // namespace

int main(int argc, char** argv) {
  size_t mutations = 1000;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
      mutations = std::strtoul(argv[++i], nullptr, 10);
    } else if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
    } else {
      files.push_back(argv[i]);
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FOLDER|FILE... [--mutations N]; there is no input\n", argv[0]);
    return 2;
  }
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, OnCrash);
  std::vector<std::string> inputs;
  for (const fs::path& file : files) inputs.push_back(ReadFile(file));
  for (size_t i = 0; i < files.size(); ++i) Run(files[i].filename().string(), inputs[i]);
  for (size_t i = 0; i < files.size(); ++i) {
    std::mt19937 random(static_cast<uint32_t>(i));
    for (size_t k = 0; k < mutations; ++k) {
      Run("mutation " + std::to_string(k) + " of " + files[i].filename().string(), Mutate(inputs[i], inputs, random));
    }
  }
  std::printf("%zu files, %zu mutations each: none ended the process\n", files.size(), mutations);
  return 0;
}
