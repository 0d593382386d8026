// Asking a gateway over HTTP.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace meshnet::cli {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string body;
  std::string trouble;  // why there is none
};

// GET `base` + `path`; `base` is "http://host:port" with an optional path. `api_key` may be empty.
HttpAnswer HttpGet(const std::string& base, const std::string& path, const std::string& api_key, Duration timeout);

// Whether GET `base`/readyz is a 200. For our own gateway: its certificate is not checked.
bool AnswersReady(const std::string& base, Duration timeout);

}  // namespace meshnet::cli
