// The same gateway behind HTTPS.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <filesystem>

#include "gateway_bed.h"
#include "wire/tls_authority_file.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

class TlsClient {
 public:
  explicit TlsClient(const std::string& address) : socket_(address), context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free) {}

  // With the authority's certificate the server's must be signed by it.
  bool Connect(const std::string& authority_path) {
    SSL_CTX_load_verify_locations(context_.get(), authority_path.c_str(), nullptr);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.fd());
    return SSL_connect(ssl_.get()) == 1;
  }
  void Send(const std::string& bytes) { SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())); }
  std::string ReadUntil(const std::string& marker) {
    char bytes[16384];
    while (received_.find(marker) == std::string::npos) {
      const int count = SSL_read(ssl_.get(), bytes, sizeof(bytes));
      if (count <= 0) break;
      received_.append(bytes, static_cast<size_t>(count));
    }
    return received_;
  }
  void Close() {
    SSL_shutdown(ssl_.get());
    socket_.Close();
  }

 private:
  RawHttpClient socket_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
  std::string received_;
};

class HttpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/https_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    TlsAuthorityOptions authority;
    authority.folder = folder_;
    authority.hosts = {"gateway,127.0.0.1"};
    auto issued = IssueCertificates(authority);
    ASSERT_TRUE(issued.ok()) << issued.status().message();
    authority_path_ = issued->authority_path;
    options_.gateway.tls_certificate_path = issued->certificates[0].certificate_path;
    options_.gateway.tls_key_path = issued->certificates[0].key_path;
    options_.wait_ready = false;  // the bed itself speaks plain HTTP
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_, authority_path_;
  BedOptions options_;
};

TEST_F(HttpsTest, StreamsAndKeepsTheConnection) {
  GatewayBed bed(options_);
  TlsClient client(bed.address());
  ASSERT_TRUE(client.Connect(authority_path_));
  client.Send(GatewayBed::PostBytes("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 20}, {"temperature", 0}, {"stream", true}}));
  std::string text;
  for (const std::string& event : EventsOf(BodyOf(client.ReadUntil("\r\n0\r\n\r\n")))) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, bed.ExpectedCompletion("abc", 20));
  client.Send("GET /livez HTTP/1.1\r\n\r\n");
  EXPECT_NE(client.ReadUntil("{\"status\":\"ok\"}").find("{\"status\":\"ok\"}"), std::string::npos);
}

TEST_F(HttpsTest, AClientThatGoesAwayFreesItsWork) {
  GatewayBed bed(options_);
  bed.shard(1).Block(5);
  TlsClient client(bed.address());
  ASSERT_TRUE(client.Connect(authority_path_));
  client.Send(GatewayBed::PostBytes("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 300}, {"temperature", 0}}));
  bed.shard(1).WaitBlocked();
  client.Close();
  ASSERT_TRUE(bed.shard(1).WaitCancel());
  bed.shard(1).Unblock();
  bed.WaitIdle();
}

TEST_F(HttpsTest, PlainHttpAndNonsenseAreSentAway) {
  GatewayBed bed(options_);
  RawHttpClient plain(bed.address()), nonsense(bed.address());
  plain.Send("GET /livez HTTP/1.1\r\n\r\n");
  nonsense.Send(std::string(1000, '\7'));
  plain.ReadToEnd();
  nonsense.ReadToEnd();
  EXPECT_TRUE(plain.closed_by_server());
  EXPECT_TRUE(nonsense.closed_by_server());
  TlsClient client(bed.address());
  EXPECT_TRUE(client.Connect(authority_path_));
}

}  // namespace
}  // namespace meshnet::gateway
