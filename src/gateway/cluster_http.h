// GET /cluster/v1/status: route, workers and sessions, as `meshnet status --json` prints them. Session ids are shown by their first 8 digits.
#pragma once

#include <string>
#include <vector>

#include "gateway/http_types.h"
#include "gateway/metrics.h"
#include "gateway/route_monitor.h"
#include "session/route.h"
#include "session/session_pool.h"

namespace meshnet::gateway {

HttpReply ClusterStatus(const Route& route, const std::string& model_id, const std::vector<WorkerView>& workers,
                        const std::vector<SessionPool::SessionInfo>& sessions, const Metrics& metrics);

}  // namespace meshnet::gateway
