#include "engine/llama/llama_library.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

#include "llama.h"
#include "log.h"

namespace meshnet {
namespace {

constexpr size_t kComplaintBytesMax = 600;

// llama.cpp logs from any thread, and a line may come in pieces (GGML_LOG_LEVEL_CONT).
class LogEar {
 public:
  // Whoever listened before goes on hearing: the text room, in a process that has both. llama.cpp's own listener, which prints, has no data.
  void Listen() {
    llama_log_get(&before_, &before_data_);
    if (before_data_ == nullptr) before_ = nullptr;
    llama_log_set([](ggml_log_level level, const char* text, void* ear) { static_cast<LogEar*>(ear)->Hear(level, text); }, this);
  }

  void Hear(ggml_log_level level, const char* text) {
    if (before_ != nullptr) before_(level, text, before_data_);
    if (level == GGML_LOG_LEVEL_ERROR && to_stderr_) std::fputs(text, stderr);
    std::lock_guard lock(mutex_);
    if (level != GGML_LOG_LEVEL_CONT) keeping_ = level == GGML_LOG_LEVEL_ERROR || (level == GGML_LOG_LEVEL_WARN && !error_kept_);
    if (!keeping_) return;
    if (level == GGML_LOG_LEVEL_ERROR) error_kept_ = true;
    if (level != GGML_LOG_LEVEL_CONT) complaint_.clear();
    complaint_ += text;
    if (complaint_.size() > kComplaintBytesMax) complaint_.resize(kComplaintBytesMax);
  }

  std::string Take() {
    std::lock_guard lock(mutex_);
    std::string text;
    text.swap(complaint_);
    error_kept_ = keeping_ = false;
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    return text;
  }

  void AlsoToStderr() { to_stderr_ = true; }

 private:
  ggml_log_callback before_ = nullptr;
  void* before_data_ = nullptr;
  std::mutex mutex_;
  std::string complaint_;
  bool keeping_ = false;
  bool error_kept_ = false;
  std::atomic<bool> to_stderr_ = false;
};

// Never destroyed: llama.cpp's own static objects may still log at exit.
LogEar& Ear() {
  static LogEar* ear = new LogEar;
  return *ear;
}

}  // namespace

void UseLlamaLibrary() {
  static const bool once = [] {
    Ear().Listen();
    common_log_set_verbosity_thold(-1);  // common/ would print prompts and grammars
    llama_backend_init();
    return true;
  }();
  static_cast<void>(once);
}

void LlamaErrorsToStderr() { Ear().AlsoToStderr(); }

std::string TakeLlamaComplaint() { return Ear().Take(); }

}  // namespace meshnet
