// What every program of ours does before and around its work.
#pragma once

namespace meshnet::cli {

// Ignores broken pipes, sends logs to stderr, keeps OpenMP from spinning (which may start the program once more, before anything happened), and
// turns what a library threw into one line and an exit code.
int RunMain(int argc, char** argv, int (*body)(int, char**));

// For verbs whose rooms log what the person did not ask for.
void LogOnlyWarnings();

}  // namespace meshnet::cli
