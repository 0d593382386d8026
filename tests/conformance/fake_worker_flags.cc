#include "fake_worker_flags.h"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "base/sha256.h"

namespace meshnet {

const char kFakeWorkerUsage[] =
    "usage: fake_shard_worker [--listen ADDRESS] [--layers A:B] [--layer-count N] [--width N] [--vocabulary N] [--chunk-rows N]\n"
    "  [--model-name NAME] [--truncation full|window|whole] [--window N] [--call-delay-ms N] [--slow-file FILE] [--load-delay-ms N] [--fail-to-load]\n"
    "  [--answer-tokens N] [--turn FILE] [--ready-fd N] [--lifeline-fd N] [--drain-limit-ms N] [--drain-quiet-ms N] [--handshake-limit-ms N]\n"
    "  [--tls-cert FILE --tls-key FILE --tls-ca FILE] [--insecure]\n"
    "One shard worker on the fake engine. MESHNET_HOT_KV_* as for the real one. One line with the address goes to --ready-fd, or to stdout.\n";

namespace {

template <typename Number>
bool Parse(const std::string& text, Number& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseRange(const std::string& text, LayerRange& range) {
  size_t colon = text.find(':');
  return colon != std::string::npos && Parse(text.substr(0, colon), range.begin) && Parse(text.substr(colon + 1), range.end) && !range.empty();
}

bool ParseTruncation(const std::string& text, TruncationClass& truncation_class) {
  for (TruncationClass value : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
    if (text != Name(value)) continue;
    truncation_class = value;
    return true;
  }
  return false;
}

bool ParseMilliseconds(const std::string& text, Duration& duration) {
  uint32_t ms = 0;
  if (!Parse(text, ms)) return false;
  duration = std::chrono::milliseconds(ms);
  return true;
}

using Setter = std::function<bool(const std::string&)>;

std::map<std::string, Setter> SettersOf(FakeWorkerFlags& flags, bool& range_given) {
  ShardWorkerOptions& worker = flags.worker;
  auto text = [](std::string& out) { return [&out](const std::string& value) { return out = value, true; }; };
  auto number = [](auto& out) { return [&out](const std::string& value) { return Parse(value, out); }; };
  auto duration = [](Duration& out) { return [&out](const std::string& value) { return ParseMilliseconds(value, out); }; };
  return {
      {"--listen", text(worker.listen)},
      {"--layers", [&](const std::string& value) { return range_given = true, ParseRange(value, flags.range); }},
      {"--layer-count", number(flags.model.layer_count)},
      {"--width", number(flags.model.width)},
      {"--vocabulary", number(flags.model.vocabulary_size)},
      {"--chunk-rows", number(flags.chunk_rows_max)},
      {"--model-name", text(flags.model_name)},
      {"--truncation", [&](const std::string& value) { return ParseTruncation(value, flags.truncation_class); }},
      {"--window", number(flags.window_tokens)},
      {"--call-delay-ms", number(flags.call_delay_ms)},
      {"--slow-file", text(flags.slow_file)},
      {"--load-delay-ms", number(flags.load_delay_ms)},
      {"--answer-tokens", number(flags.model.answer_tokens)},
      {"--turn", text(worker.turn_path)},
      {"--ready-fd", number(worker.ready_fd)},
      {"--lifeline-fd", number(worker.lifeline_fd)},
      {"--drain-limit-ms", duration(worker.drain_limit)},
      {"--drain-quiet-ms", duration(worker.drain_quiet)},
      {"--handshake-limit-ms", duration(worker.handshake_limit)},
      {"--tls-cert", text(worker.tls.certificate_path)},
      {"--tls-key", text(worker.tls.key_path)},
      {"--tls-ca", text(worker.tls.authority_path)},
  };
}

// Holds the engine call until the file is gone. The second file tells the test that a call stands here. Bounded, so that a test that forgets
// the file fails instead of hanging.
void WaitWhileThere(const std::string& path) {
  constexpr int kLooksMax = 30'000;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const std::string waiting = path + ".waiting";
  std::ofstream(waiting).flush();
  for (int look = 0; look < kLooksMax && std::filesystem::exists(path, ignored); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::remove(waiting, ignored);
}

Status Usage(const std::string& what) { return Status(StatusCode::kUsage, what + "\n" + kFakeWorkerUsage); }

}  // namespace

Result<FakeWorkerFlags> ParseFakeWorkerFlags(int argc, char** argv) {
  FakeWorkerFlags flags;
  flags.worker.listen = "127.0.0.1:0";
  flags.worker.ready_fd = 1;
  bool range_given = false;
  const std::map<std::string, Setter> setters = SettersOf(flags, range_given);
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--insecure") {
      flags.worker.tls.insecure = true;
    } else if (name == "--fail-to-load") {
      flags.fail_to_load = true;
    } else {
      auto setter = setters.find(name);
      if (setter == setters.end()) return Usage("unknown flag " + name);
      if (i + 1 == argc || !setter->second(argv[++i])) return Usage(name + " needs another value");
    }
  }
  if (!range_given) flags.range = {0, flags.model.layer_count};
  if (flags.range.end > flags.model.layer_count || flags.model.width == 0 || flags.model.vocabulary_size < 2 || flags.chunk_rows_max == 0 ||
      flags.window_tokens == 0) {
    return Usage("the layers are not of this model, or a size is 0");
  }
  if (flags.model.answer_tokens > 0) flags.model.end_of_generation_tokens = {0};
  Result<HotKvSettings> settings = ReadHotKvSettings([](const char* name) { return std::getenv(name); });
  if (!settings.ok()) return settings.status();
  flags.worker.hot_kv = *settings;
  return flags;
}

ShardDescription DescriptionOf(const FakeWorkerFlags& flags) {
  ShardDescription description;
  description.engine_build = "fake engine";
  description.model_name = flags.model_name;
  description.architecture = "fake";
  description.layer_count = flags.model.layer_count;
  description.range = flags.range;
  description.boundary_width = flags.model.width;
  description.vocabulary_size = flags.model.vocabulary_size;
  const std::string model = flags.model_name + "/" + std::to_string(flags.model.layer_count) + "/" + std::to_string(flags.model.width) + "/" +
                            std::to_string(flags.model.vocabulary_size);
  description.model_root = Sha256().Update(model).Digest();
  description.range_digest = Sha256().Update(model + flags.range.Text()).Digest();
  description.kv_bytes_per_token = flags.range.size() * sizeof(FakeState);
  description.kv_bytes_predicted = description.kv_bytes_per_token * flags.worker.hot_kv.budget_tokens;
  return description;
}

FakeEngineOptions EngineOptionsOf(const FakeWorkerFlags& flags) {
  FakeEngineOptions options;
  options.model = flags.model;
  options.range = flags.range;
  options.sessions_max = flags.worker.hot_kv.sessions_max;
  options.context_tokens = flags.worker.hot_kv.context_tokens;
  options.budget_tokens = flags.worker.hot_kv.budget_tokens;
  options.chunk_rows_max = flags.chunk_rows_max;
  options.truncation_class = flags.truncation_class;
  options.window_tokens = flags.window_tokens;
  if (flags.call_delay_ms > 0 || !flags.slow_file.empty()) {
    // The delay stands for the time a real model computes; no test waits for it by the clock.
    options.on_run = [delay = std::chrono::milliseconds(flags.call_delay_ms), slow_file = flags.slow_file](std::span<const EngineStep>) {
      std::this_thread::sleep_for(delay);
      if (!slow_file.empty()) WaitWhileThere(slow_file);
    };
  }
  return options;
}

}  // namespace meshnet
