// The gateway behind gateway.h, with the limits that tests shorten.
#pragma once

#include <memory>

#include "gateway/answer_in_flight.h"
#include "gateway/gateway.h"
#include "gateway/http_server.h"
#include "gateway/route_monitor.h"

namespace meshnet::gateway {

struct GatewayLimits {
  AnswerLimits answer;
  HttpServerOptions http;       // the TLS paths, the read limit and the threads come from elsewhere
  MonitorOptions monitor;       // the canary prompt comes from the text model
  size_t requests_max = 384;    // at least so many may be worked on at once, streams that a slow client still reads included
  size_t reserved_threads = 128;  // beyond those, for probes, errors and requests that are still being read
};

Result<std::unique_ptr<Gateway>> StartGateway(GatewayOptions options, GatewayLimits limits, Route& route, const TextModel& text,
                                              std::vector<ShardLink*> worker_links, const Clock& clock);

}  // namespace meshnet::gateway
