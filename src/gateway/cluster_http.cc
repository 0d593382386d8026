#include "gateway/cluster_http.h"

#include <algorithm>
#include <map>

#include "gateway/replies.h"

namespace meshnet::gateway {
namespace {

using nlohmann::ordered_json;

ordered_json WorkerJson(const WorkerView& worker, const Metrics::HopTimes& hops) {
  const ShardDescription description = worker.description.value_or(ShardDescription{});
  const ShardStats stats = worker.stats.value_or(ShardStats{});
  return {{"address", worker.address},
          {"pid", description.process_id},
          {"layers", {description.range.begin, description.range.end}},
          {"state", worker.answering ? Name(description.state) : "unreachable"},
          {"incarnation", description.incarnation.Hex()},
          {"sessions_live", stats.sessions_live},
          {"sessions_busy", stats.sessions_busy},
          {"steps_queued", stats.steps_queued},
          {"sequences_free", stats.sequences_free},
          {"kv_tokens_reserved", stats.kv_tokens_reserved},
          {"kv_tokens_used", stats.kv_tokens_used},
          {"kv_bytes_allocated", description.kv_bytes_allocated},
          {"evictions", {{"lru", stats.evictions_lru}, {"ttl", stats.evictions_ttl}, {"superseded", stats.evictions_superseded}, {"lost", stats.sessions_lost}}},
          {"refusals", ordered_json(std::map<std::string, uint64_t>(stats.refusals.begin(), stats.refusals.end()))},
          {"steps_replayed", stats.replays},
          {"hop_seconds_p50", hops.p50},
          {"hop_seconds_p99", hops.p99}};
}

// Behind the line break is the client's own word; in front may be the mark of the gateway itself.
std::string ShownOwner(const std::string& owner) {
  const std::string name = owner.substr(0, owner.find('\n'));
  return !name.empty() && name.front() == '\1' ? name.substr(1) : name;
}

}  // namespace

HttpReply ClusterStatus(const Route& route, const std::string& model_id, const std::vector<WorkerView>& workers,
                        const std::vector<SessionPool::SessionInfo>& sessions, const Metrics& metrics) {
  std::vector<WorkerView> ordered = workers;
  std::stable_sort(ordered.begin(), ordered.end(), [](const WorkerView& a, const WorkerView& b) {
    auto begin = [](const WorkerView& worker) { return worker.description ? worker.description->range.begin : UINT32_MAX; };
    return begin(a) < begin(b);
  });
  ordered_json body;
  body["route"] = {{"epoch", route.generation()}, {"model", model_id}, {"state", Name(route.state())}};
  if (const std::string trouble = route.trouble(); !trouble.empty()) body["route"]["trouble"] = trouble;
  if (const auto warnings = route.warnings(); !warnings.empty()) body["route"]["warnings"] = warnings;
  body["workers"] = ordered_json::array();
  for (size_t stage = 0; stage < ordered.size(); ++stage) body["workers"].push_back(WorkerJson(ordered[stage], metrics.Hops(stage)));
  body["sessions"] = ordered_json::array();
  for (const SessionPool::SessionInfo& session : sessions) {
    body["sessions"].push_back({{"id_prefix", session.id_prefix},
                                {"owner", ShownOwner(session.owner)},
                                {"epoch", session.epoch.value},
                                {"past_len", session.past_len.value},
                                {"state", session.answering ? "answering" : "idle"},
                                {"idle_seconds", session.idle_seconds}});
  }
  return JsonReply(200, body);
}

}  // namespace meshnet::gateway
