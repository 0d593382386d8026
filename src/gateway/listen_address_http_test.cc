#include "gateway/listen_address_http.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace meshnet::gateway {
namespace {

TEST(ListenAddressTest, ReadsTheUsualForms) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } rows[] = {
      {"127.0.0.1:8080", "127.0.0.1", 8080}, {"localhost:0", "localhost", 0}, {"[::1]:80", "::1", 80}, {"[::]:65535", "::", 65535},
  };
  for (const auto& row : rows) {
    auto parsed = ParseListenAddress(row.text);
    ASSERT_TRUE(parsed.ok()) << row.text << ": " << parsed.status().message();
    EXPECT_EQ(parsed->host, row.host);
    EXPECT_EQ(parsed->port, row.port);
  }
}

TEST(ListenAddressTest, QuotesWhatItRefuses) {
  for (const char* text : {"", "8080", "localhost", ":80", "::1", "::1:80", "[::1]", "[::1]80", "[nonsense]:80", "host:99999", "host:-1", "host:",
                           "host:80x", "host: 80", "[::1:80"}) {
    auto parsed = ParseListenAddress(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kBadConfiguration);
    const std::string quoted = std::string("\"").append(text).append("\"");
    EXPECT_NE(parsed.status().message().find(quoted), std::string::npos) << parsed.status().message();
  }
}

TEST(ListenAddressTest, PrintsTheRealPortSoThatItCanBePastedBack) {
  for (const char* text : {"127.0.0.1:0", "[::1]:0", "localhost:0"}) {
    auto bound = BindAndListen(*ParseListenAddress(text));
    if (!bound.ok() && std::string(text) == "[::1]:0") GTEST_SKIP() << "this machine has no IPv6 loopback";
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    EXPECT_TRUE(bound->loopback);
    auto again = ParseListenAddress(bound->address);
    ASSERT_TRUE(again.ok()) << bound->address;
    EXPECT_NE(again->port, 0);
    ::close(bound->socket);
  }
}

TEST(ListenAddressTest, RefusesATakenPortByName) {
  auto first = BindAndListen(*ParseListenAddress("127.0.0.1:0"));
  ASSERT_TRUE(first.ok());
  auto second = BindAndListen(*ParseListenAddress(first->address));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kBadConfiguration);
  EXPECT_NE(second.status().message().find(first->address), std::string::npos);
  // A name that also has a free IPv6 address does not slip onto that one.
  auto by_name = BindAndListen({"localhost", ParseListenAddress(first->address)->port});
  EXPECT_FALSE(by_name.ok());
  ::close(first->socket);
}

TEST(ListenAddressTest, KnowsWhatOnlyThisMachineReaches) {
  auto any = BindAndListen(*ParseListenAddress("0.0.0.0:0"));
  ASSERT_TRUE(any.ok());
  EXPECT_FALSE(any->loopback);
  ::close(any->socket);
}

}  // namespace
}  // namespace meshnet::gateway
