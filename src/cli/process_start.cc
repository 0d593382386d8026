#include "cli/process_start.h"

#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

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

// A file of ours that took the number of a stream nobody gave us would be written to as that stream.
void OpenMissingStreams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", O_RDWR);  // takes the lowest free number, which is this one
  }
}

// What a program said with success, but could not write, it has not said.
int WithOutput(int code) {
  const std::optional<int> lost = LostOutput();
  if (code != 0 || !lost) return code;
  return Report(Failure(std::string("stdout cannot be written: ") + std::strerror(*lost)));
}

}  // namespace

void LogOnlyWarnings() { spdlog::set_level(spdlog::level::warn); }

int RunMain(int argc, char** argv, int (*body)(int, char**)) {
  OpenMissingStreams();
  // Where there is a debugger, a failed assertion of llama.cpp's would attach it and stand still for as long as that takes: minutes on a busy machine.
  setenv("GGML_NO_BACKTRACE", "1", 0);
  // May start the program once more, so it comes before everything else.
  EnsureOpenMpDoesNotSpin(argv);
  // Started by way of /proc/self/exe it would be called "exe" in a list of processes.
  if (argc > 0) prctl(PR_SET_NAME, std::filesystem::path(argv[0]).filename().c_str());
  IgnoreBrokenPipes();
  try {
    // Characters and their widths in the terminal.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    LogToStderr();
    return WithOutput(body(argc, argv));
  } catch (const std::bad_alloc&) {
    return Report(OutOfMemory("out of memory"));
  } catch (const std::system_error& error) {
    const bool scarce = error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
    if (!scarce) return Report(Failure(std::string("unexpected: ") + error.what()));
    return Report(OutOfMemory("no thread can be started: memory (ulimit -v) or the number of processes (ulimit -u) is used up"));
  } catch (const std::exception& error) {
    return Report(Failure(std::string("unexpected: ") + error.what()));
  }
}

}  // namespace meshnet::cli
