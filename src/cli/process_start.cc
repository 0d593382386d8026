#include "cli/process_start.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <clocale>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "cli/report.h"
#include "cli/system_signals.h"
#include "engine/llama/openmp_environment.h"

namespace meshnet::cli {
namespace {

// stdout carries data, so logs go to stderr; a log that cannot be written is lost, never fatal.
void LogToStderr() {
  std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("meshnet");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  const char* level = std::getenv("MESHNET_LOG_LEVEL");
  logger->set_level(level == nullptr ? spdlog::level::info : spdlog::level::from_str(level));
  spdlog::set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(logger);
}

}  // namespace

void LogOnlyWarnings() { spdlog::set_level(spdlog::level::warn); }

int RunMain(int argc, char** argv, int (*body)(int, char**)) {
  // May start the program once more, so it comes before everything.
  EnsureOpenMpDoesNotSpin(argv);
  // Started by way of /proc/self/exe it would be called "exe" in a list of processes.
  if (argc > 0) prctl(PR_SET_NAME, std::filesystem::path(argv[0]).filename().c_str());
  IgnoreBrokenPipes();
  try {
    // Characters and their widths in the terminal.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    LogToStderr();
    return body(argc, argv);
  } catch (const std::bad_alloc&) {
    return Report(OutOfMemory("out of memory"));
  } catch (const std::exception& error) {
    return Report(Failure(std::string("unexpected: ") + error.what()));
  }
}

}  // namespace meshnet::cli
