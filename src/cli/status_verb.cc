#include <nlohmann/json.hpp>

#include "cli/gateway_address_flags.h"
#include "cli/readiness_http.h"
#include "cli/report.h"
#include "cli/url.h"
#include "cli/verbs.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

// A cell of whatever a field holds; "-" when it is absent.
std::string Cell(const ordered_json& row, const char* name) {
  auto field = row.find(name);
  if (field == row.end() || field->is_null()) return "-";
  if (field->is_string()) return field->get<std::string>();
  if (field->is_array() && field->size() == 2) return "[" + (*field)[0].dump() + "," + (*field)[1].dump() + ")";
  return field->dump();
}

std::string Milliseconds(const ordered_json& row, const char* name) {
  auto field = row.find(name);
  return field != row.end() && field->is_number() ? Decimal(field->get<double>() * 1000, 2) : "-";
}

std::string Size(const ordered_json& row, const char* name) {
  auto field = row.find(name);
  return field != row.end() && field->is_number_unsigned() ? HumanBytes(field->get<uint64_t>()) : "-";
}

// "cache-miss 3, step-gap 1" of an object of counts; "-" when nothing was counted.
std::string Counts(const ordered_json& row, const char* name) {
  std::string text;
  const ordered_json counts = row.value(name, ordered_json::object());
  for (const auto& count : counts.items()) {
    if (count.value() != 0) text += (text.empty() ? "" : ", ") + count.key() + " " + count.value().dump();
  }
  return text.empty() ? "-" : text;
}

std::string ToText(const ordered_json& status) {
  ordered_json route = status.value("route", ordered_json::object());
  std::string text = "route  " + Cell(route, "state") + "  model " + Cell(route, "model") + "  epoch " + Cell(route, "epoch") + "\n\n";
  TextTable workers({"address", "pid", "layers", "state", "sessions", "busy", "reserved", "used", "KV", "hop ms p50", "p99"});
  for (const ordered_json& worker : status.value("workers", ordered_json::array())) {
    workers.Add({Cell(worker, "address"), Cell(worker, "pid"), Cell(worker, "layers"), Cell(worker, "state"), Cell(worker, "sessions_live"),
                 Cell(worker, "sessions_busy"), Cell(worker, "kv_tokens_reserved"), Cell(worker, "kv_tokens_used"), Size(worker, "kv_bytes_allocated"),
                 Milliseconds(worker, "hop_seconds_p50"), Milliseconds(worker, "hop_seconds_p99")});
  }
  text += workers.Format();
  TextTable counts({"layers", "sessions given up", "steps refused", "replayed"});
  for (const ordered_json& worker : status.value("workers", ordered_json::array())) {
    counts.Add({Cell(worker, "layers"), Counts(worker, "evictions"), Counts(worker, "refusals"), Cell(worker, "steps_replayed")});
  }
  text += "\n" + counts.Format();
  ordered_json sessions = status.value("sessions", ordered_json::array());
  if (sessions.empty()) return text + "\nno sessions\n";
  TextTable table({"session", "owner", "epoch", "tokens", "state", "idle s"});
  for (const ordered_json& session : sessions) {
    auto idle = session.find("idle_seconds");
    table.Add({Cell(session, "id_prefix"), Cell(session, "owner"), Cell(session, "epoch"), Cell(session, "past_len"), Cell(session, "state"),
               idle != session.end() && idle->is_number() ? Decimal(idle->get<double>(), 1) : "-"});
  }
  return text + "\n" + table.Format();
}

}  // namespace

int ShowStatus(int argc, char** argv) {
  GatewayAddressFlags gateway;
  bool json = false;
  Arguments arguments("status", "A gateway's route, workers and sessions.");
  gateway.AddTo(arguments);
  arguments.Switch("--json", &json, "one JSON object on stdout");
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (!ParseUrl(gateway.url)) return arguments.Usage("--url " + gateway.url + ": not a URL such as http://127.0.0.1:8080");

  HttpAnswer answer = HttpGet(gateway.url, "/cluster/v1/status", gateway.api_key, std::chrono::seconds(10));
  if (answer.status == 0) return Report(PeerUnreachable("no answer from " + gateway.url + ": " + answer.trouble + "; is a gateway running there?"));
  ordered_json status = ordered_json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || !status.is_object()) {
    return Report(Failure(gateway.url + " answered " + std::to_string(answer.status) + ": " + answer.body.substr(0, 300)));
  }
  try {
    Print(json ? status.dump(2) + "\n" : ToText(status));
  } catch (const nlohmann::json::exception& error) {
    return Report(Failure(gateway.url + " is no meshnet gateway: " + error.what()));
  }
  return 0;
}

}  // namespace meshnet::cli
