// Which handler a method and path reach, who may, and what browsers are told. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gateway/http_types.h"

namespace meshnet::gateway {

struct Caller {
  std::string owner;  // the key's name, or the client's address where no key is needed
};

struct Endpoint {
  std::string method;  // "GET" serves HEAD too
  std::string path;    // one that ends with '/' stands for all paths below it
  enum class Access { kOpen, kKey } access = Access::kKey;
  // False: answered even when too much work is inside. For what is quick and must always answer.
  bool is_work = false;
  std::function<HttpReply(const HttpRequest&, const Peer&, const Caller&)> handle;
};

class Router {
 public:
  void Add(Endpoint endpoint) { endpoints_.push_back(std::move(endpoint)); }

  struct Found {
    const Endpoint* endpoint = nullptr;
    std::string allowed;  // without an endpoint: the methods this path has, "GET, POST"; empty: no such path
  };
  Found Find(const std::string& method, const std::string& path) const;

 private:
  std::vector<Endpoint> endpoints_;
};

// The key a request carries: "Authorization: Bearer KEY" or "x-api-key: KEY"; empty when it has none.
std::string KeyOf(const HttpRequest& request);

// Whether a page of this origin may read replies. Where everyone needs a key, any page: it must know one, and browsers add none by themselves.
// Elsewhere only pages of this machine.
bool OriginAllowed(const std::string& origin, bool keys_required);
// The headers that let the page of request's Origin read the reply; nothing for other clients.
void AddCorsHeaders(const HttpRequest& request, bool keys_required, HttpHeaders* headers);
// The answer to a preflight: names the methods and headers, since `*` does not cover Authorization.
HttpReply PreflightReply(const HttpRequest& request);

// Surfaces of other servers that are refused in words instead of "not found"; empty for any other path.
std::string UnsupportedSurface(const std::string& path);

}  // namespace meshnet::gateway
