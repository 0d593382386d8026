// The one place that initialises llama.cpp for this process and listens to its log.
#pragma once

#include <string>

namespace meshnet {

// Idempotent and thread-safe. Nothing is printed: warnings and errors are kept for messages (LastLlamaComplaint).
void UseLlamaLibrary();

// From now on also to stderr, for the child process that probes a shard. Thread-safe.
void LlamaErrorsToStderr();

// The last warning or error line since the previous call, without its newline; empty when there was none. Thread-safe.
std::string TakeLlamaComplaint();

}  // namespace meshnet
