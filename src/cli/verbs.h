// The verbs of `meshnet`. Each takes the arguments after its name and returns the process's exit code (docs: contract). Data goes to
// stdout, progress and logs to stderr.
#pragma once

namespace meshnet::cli {

int Serve(int argc, char** argv);
int Run(int argc, char** argv);
int Cut(int argc, char** argv);
int Inspect(int argc, char** argv);
int Worker(int argc, char** argv);
int Gateway(int argc, char** argv);
int Chat(int argc, char** argv);
int Verify(int argc, char** argv);
int Bench(int argc, char** argv);
int ShowStatus(int argc, char** argv);
int Certificates(int argc, char** argv);

}  // namespace meshnet::cli
