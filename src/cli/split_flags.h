// How a model is to be split, as flags of serve, run, verify and bench.
#pragma once

#include <optional>

#include "cli/arguments.h"
#include "cli/model_preparation.h"

namespace meshnet::cli {

class SplitFlags {
 public:
  void AddTo(Arguments& arguments) {
    arguments.Number("--shards", &wish_.shards, 1, 1024, "this many workers, of like weight");
    arguments.NumberList("--cuts", &wish_.cuts, "workers between these layers: 7,14 means [0,7) [7,14) [14,n)");
  }
  // The exit code of a usage mistake, when there is one. After Parse.
  std::optional<int> Resolve(const Arguments& arguments, SplitWish* wish) const {
    *wish = wish_;
    // A flag of one kind wins over the environment's other kind.
    if (arguments.from_command_line("--cuts") && !arguments.from_command_line("--shards")) wish->shards = 0;
    if (arguments.from_command_line("--shards") && !arguments.from_command_line("--cuts")) wish->cuts.clear();
    if ((wish->shards > 0) == !wish->cuts.empty()) return arguments.Usage("one of --shards N and --cuts A,B,... is needed");
    return std::nullopt;
  }

 private:
  SplitWish wish_;
};

}  // namespace meshnet::cli
