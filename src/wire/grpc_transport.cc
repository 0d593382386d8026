#include "wire/grpc_transport.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <climits>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "wire/clean_text.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

// Lines of the log by where gRPC wrote them; bounded by the number of places in gRPC's source.
class LogFolder {
 public:
  void Line(const gpr_log_func_args& args) {
    if (args.severity != GPR_LOG_SEVERITY_ERROR) return;
    const Time now = std::chrono::steady_clock::now();
    uint64_t folded = 0;
    {
      std::lock_guard lock(mutex_);
      Place& place = places_[{args.file, args.line}];
      if (place.shown && now - *place.shown < std::chrono::minutes(1)) {
        ++place.folded;
        return;
      }
      folded = std::exchange(place.folded, 0);
      place.shown = now;
    }
    std::string text = CleanText(args.message, 300);
    if (folded > 0) text += " (and " + std::to_string(folded) + " more like it)";
    std::fprintf(stderr, "meshnet: grpc: %s\n", text.c_str());
  }

 private:
  struct Place {
    std::optional<Time> shown;
    uint64_t folded = 0;
  };
  std::mutex mutex_;  // guards places_
  std::map<std::pair<std::string, int>, Place> places_;
};

LogFolder& Folder() {
  static LogFolder* folder = new LogFolder();  // never destroyed: gRPC threads may log while the process ends
  return *folder;
}

constexpr int kKeepaliveMs = 20000;
constexpr int kKeepaliveTimeoutMs = 10000;

}  // namespace

std::vector<std::pair<std::string, int>> SharedTransportArguments() {
  return {
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20},
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20},
      {GRPC_ARG_HTTP2_BDP_PROBE, 0},
      {GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},  // 0: no limit, so a silent quarter of an hour keeps its connection
      {GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMetadataBytesMax)},
      {GRPC_ARG_ENABLE_RETRIES, 0},
      {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
      {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
  };
}

std::vector<std::pair<std::string, int>> ClientTransportArguments() {
  return {
      {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50},
      {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500},
      {GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000},  // despite its name the time that one attempt to connect may take
      {GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500},
      {GRPC_ARG_DNS_ENABLE_SRV_QUERIES, 0},
      {GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1},
      {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
      {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
      {GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX},
      {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(kAnswerBytesMax + kCoalescedBytesMax)},
  };
}

std::vector<std::pair<std::string, int>> ServerTransportArguments() {
  return {
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, 128},
  };
}

void QuietGrpcLog() {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) { Folder().Line(*args); });
}

}  // namespace meshnet
