// The shard worker alone: the same code as `meshnet worker`.
#include <cstring>

#include "cli/process_start.h"
#include "cli/verbs.h"

int main(int argc, char** argv) {
  return meshnet::cli::RunMain(argc, argv, [](int count, char** words) {
    // A worker starts its own probe as `worker …`, whichever program it is.
    int skipped = count > 1 && std::strcmp(words[1], "worker") == 0 ? 2 : 1;
    return meshnet::cli::Worker(count - skipped, words + skipped);
  });
}
