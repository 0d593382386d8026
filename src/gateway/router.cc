#include "gateway/router.h"

#include <strings.h>

#include <algorithm>

namespace meshnet::gateway {
namespace {

bool Matches(const Endpoint& endpoint, const std::string& path) {
  if (endpoint.path.back() == '/') return path.size() > endpoint.path.size() && path.compare(0, endpoint.path.size(), endpoint.path) == 0;
  return path == endpoint.path;
}

bool IsHeaderName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

}  // namespace

Router::Found Router::Find(const std::string& method, const std::string& path) const {
  Found found;
  const std::string wanted = method == "HEAD" ? "GET" : method;
  for (const Endpoint& endpoint : endpoints_) {
    if (!Matches(endpoint, path)) continue;
    if (endpoint.method == wanted) return {&endpoint, ""};
    if (!found.allowed.empty()) found.allowed += ", ";
    found.allowed += endpoint.method;
  }
  return found;
}

std::string KeyOf(const HttpRequest& request) {
  const std::string authorization = request.Header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (authorization.size() > kBearer.size() && strncasecmp(authorization.c_str(), kBearer.data(), kBearer.size()) == 0) {
    const size_t begin = authorization.find_first_not_of(' ', kBearer.size());
    return begin == std::string::npos ? "" : authorization.substr(begin);
  }
  return request.Header("x-api-key");
}

bool OriginAllowed(const std::string& origin, bool keys_required) {
  // It is sent back in a header, so it must look like an origin in any case.
  if (origin.empty() || origin.size() > 256) return false;
  for (char c : origin) {
    if (c <= ' ' || c >= 0x7f) return false;
  }
  if (keys_required) return true;
  const size_t scheme = origin.find("://");
  if (scheme == std::string::npos) return false;
  std::string host = origin.substr(scheme + 3);
  const size_t bracket = host.rfind(']');
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) host.resize(colon);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

void AddCorsHeaders(const HttpRequest& request, bool keys_required, HttpHeaders* headers) {
  const std::string origin = request.Header("Origin");
  if (origin.empty()) return;
  headers->emplace_back("Vary", "Origin");
  if (!OriginAllowed(origin, keys_required)) return;
  headers->emplace_back("Access-Control-Allow-Origin", origin);
  headers->emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After, x-should-retry");
}

HttpReply PreflightReply(const HttpRequest& request) {
  std::string allowed = "Authorization, x-api-key, Content-Type, Accept, x-request-id";
  // SDKs in a browser send headers of their own, which a preflight names.
  const std::string asked = request.Header("Access-Control-Request-Headers");
  for (size_t begin = 0; begin < asked.size() && allowed.size() < 2048;) {
    size_t end = asked.find(',', begin);
    if (end == std::string::npos) end = asked.size();
    std::string name = asked.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (IsHeaderName(name)) allowed.append(", ").append(name);
    begin = end + 1;
  }
  HttpReply reply;
  reply.status = 204;
  reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                   {"Access-Control-Allow-Headers", allowed},
                   {"Access-Control-Max-Age", "600"}};
  return reply;
}

std::string UnsupportedSurface(const std::string& path) {
  static constexpr const char* kSurfaces[] = {
      "audio", "images", "videos", "files", "uploads", "batches", "embeddings", "embedding", "responses", "messages", "rerank", "reranking",
      "moderations", "fine_tuning", "assistants", "threads", "vector_stores", "realtime", "completion", "infill", "lora-adapters", "slots",
  };
  std::string rest = path.rfind("/v1/", 0) == 0 ? path.substr(4) : path.substr(std::min<size_t>(1, path.size()));
  rest = rest.substr(0, rest.find('/'));
  for (const char* surface : kSurfaces) {
    if (rest == surface) return surface;
  }
  return "";
}

}  // namespace meshnet::gateway
