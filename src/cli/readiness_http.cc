#include "cli/readiness_http.h"

#include <cpp-httplib/httplib.h>

#include "cli/url.h"

namespace meshnet::cli {

namespace {

void SetLimits(httplib::Client& client, Duration timeout) {
  auto limit = std::chrono::duration_cast<std::chrono::microseconds>(timeout);
  client.set_connection_timeout(limit);
  client.set_read_timeout(limit);
}

}  // namespace

HttpAnswer HttpGet(const std::string& base, const std::string& path, const std::string& api_key, Duration timeout) {
  std::optional<Url> url = ParseUrl(base);
  if (!url) return {0, "", "not a URL: " + base};
  httplib::Client client(url->scheme_and_authority);
  SetLimits(client, timeout);
  if (!api_key.empty()) client.set_bearer_token_auth(api_key);
  httplib::Result answer = client.Get(url->path_prefix + path);
  if (!answer) return {0, "", httplib::to_string(answer.error())};
  return {answer->status, answer->body, ""};
}

bool AnswersReady(const std::string& base, Duration timeout) {
  httplib::Client client(base);
  SetLimits(client, timeout);
  client.enable_server_certificate_verification(false);
  httplib::Result answer = client.Get("/readyz");
  return answer && answer->status == 200;
}

}  // namespace meshnet::cli
