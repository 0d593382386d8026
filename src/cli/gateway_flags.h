// The flags of an HTTP gateway, shared by serve and gateway, and the life of one after it has started.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/system_signals.h"
#include "gateway/gateway.h"
#include "text/text_model.h"

namespace meshnet::cli {

class GatewayFlags {
 public:
  void AddTo(Arguments& arguments);
  GatewayOptions Resolve(const std::string& listen, bool insecure) const;
  // kBadConfiguration names the template file that cannot be read.
  Result<TextModelOptions> ResolveText(const std::string& vocab_path) const;
  Duration drain_limit() const { return std::chrono::seconds(drain_seconds_); }

 private:
  std::string api_key_file_, alias_, https_cert_, https_key_, chat_template_, chat_template_file_;
  uint32_t queue_max_ = 64;
  uint32_t drain_seconds_ = 30;
};

// What a gateway stands on. Both are called on the thread that waits.
struct Foundation {
  // A failure ends serving. Asked every 200 ms.
  std::function<std::optional<Status>()> failure = [] { return std::optional<Status>(); };
  // A second signal came, or answers ran longer than they may: what they wait for may go.
  std::function<void()> abandon = [] {};
};

// Waits until the route serves (its URL is then printed on stdout) and on until a signal or a failure, drains, stops the gateway. A second signal
// cuts the drain short.
Status ServeUntilSignal(meshnet::Gateway& gateway, const GatewayOptions& options, Signals& signals, Duration drain_limit,
                        const Foundation& foundation);

}  // namespace meshnet::cli
