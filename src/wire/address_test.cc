#include "wire/address.h"

#include <gtest/gtest.h>

namespace meshnet {
namespace {

TEST(AddressTest, AcceptsTheFormsPeopleType) {
  struct Row {
    const char* name;
    const char* text;
    const char* printed;
    bool loopback;
  } rows[] = {
      {"ipv4", "127.0.0.1:7000", "127.0.0.1:7000", true},
      {"ipv4 of the loopback net", "127.1.2.3:1", "127.1.2.3:1", true},
      {"ipv4 outside", "10.0.0.1:7000", "10.0.0.1:7000", false},
      {"all ipv4", "0.0.0.0:7000", "0.0.0.0:7000", false},
      {"no port", "10.0.0.1", "10.0.0.1:7070", false},
      {"port 0", "127.0.0.1:0", "127.0.0.1:0", true},
      {"brackets", "[::1]:7000", "[::1]:7000", true},
      {"brackets, port 0", "[::1]:0", "[::1]:0", true},
      {"brackets, no port", "[::1]", "[::1]:7070", true},
      {"bare ipv6", "::1", "[::1]:7070", true},
      {"bare long ipv6", "fe80::1:2:3", "[fe80::1:2:3]:7070", false},
      {"zone", "[fe80::1%eth0]:9", "[fe80::1%eth0]:9", false},
      {"all ipv6", "[::]:7000", "[::]:7000", false},
      {"mapped loopback", "[::ffff:127.0.0.1]:7", "[::ffff:127.0.0.1]:7", true},
      {"mapped outside", "[::ffff:10.0.0.1]:7", "[::ffff:10.0.0.1]:7", false},
      {"localhost", "localhost:7000", "localhost:7000", true},
      {"bare localhost", "localhost", "localhost:7070", true},
      {"name", "worker-1.lan:65535", "worker-1.lan:65535", false},
      {"name that begins like loopback", "127.example:1", "127.example:1", false},
      {"unix", "unix:/run/meshnet.sock", "unix:/run/meshnet.sock", true},
      {"unix uri", "unix:///run/meshnet.sock", "unix:/run/meshnet.sock", true},
      {"unix relative", "unix:worker.sock", "unix:worker.sock", true},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Result<Address> address = ParseAddress(row.text, kWorkerPort);
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address->Text(), row.printed);
    EXPECT_EQ(address->is_loopback(), row.loopback);
    // What is printed can be pasted back.
    Result<Address> again = ParseAddress(address->Text(), 1);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *address);
  }
}

TEST(AddressTest, RefusesTheRestAndQuotesIt) {
  for (const char* text : {"", "host:99999", "host:65536", "host:-1", "host:", "host:7x", "host: 7", ":7070", "7070", "[::1", "[::1]7070", "[::1]:",
                           "[localhost]:1", "[127.0.0.1]:1", "::1:99999x", "1.2.3:4", "256.1.1.1:4", "ho st:1", "host/path:1", "http://host:1",
                           "a:b:c", "-host:1", ".host:1", "host:1:2", "fe80::%", "unix:", "user@host:1", "host:000001"}) {
    Result<Address> address = ParseAddress(text, kWorkerPort);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), StatusCode::kUsage);
    EXPECT_NE(address.status().message().find("\"" + std::string(text) + "\""), std::string::npos) << address.status().message();
  }
}

TEST(AddressTest, BoundsAndCleansWhatItQuotes) {
  EXPECT_FALSE(ParseAddress("unix:/" + std::string(200, 'x'), 1).ok());
  EXPECT_FALSE(ParseAddress(std::string(300, 'h') + ":1", 1).ok());
  Result<Address> control = ParseAddress("ho\x1b[2Jst:1", 1);
  ASSERT_FALSE(control.ok());
  EXPECT_EQ(control.status().message().find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace meshnet
