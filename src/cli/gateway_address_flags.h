// Which gateway a client verb talks to.
#pragma once

#include <string>

#include "cli/arguments.h"

namespace meshnet::cli {

struct GatewayAddressFlags {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;

  void AddTo(Arguments& arguments) {
    arguments.Text("--url", &url, "the gateway");
    arguments.Text("--api-key", &api_key, "its API key (better in MESHNET_API_KEY: a command line is public)");
  }
};

}  // namespace meshnet::cli
