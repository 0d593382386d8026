#include "wire/tls_credentials_file.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "meshnet/shard/v1/shard.grpc.pb.h"
#include "wire/convert.h"
#include "wire/shard_grpc_client.h"
#include "wire/tls_authority_file.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "meshnet-tls-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Files of `host` issued in `authority`'s folder.
  TlsOptions Issue(const std::string& authority, const std::string& host, int valid_days = 1) {
    TlsAuthorityOptions options{.folder = folder_ + "/" + authority, .hosts = {host}, .valid_days = valid_days};
    Result<IssuedCertificates> issued = IssueCertificates(options);
    EXPECT_TRUE(issued.ok()) << issued.status().message();
    return {issued->certificates[0].certificate_path, issued->certificates[0].key_path, issued->authority_path, false};
  }
  void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  std::string Read(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }

  std::string folder_;
};

TEST_F(TlsTest, IssuesFilesThatPassItsOwnChecks) {
  TlsOptions tls = Issue("a", "worker1,worker1.lan,10.0.0.5,::1");
  EXPECT_EQ(tls.certificate_path, folder_ + "/a/worker1.pem");
  EXPECT_TRUE(CheckTlsFiles(tls).ok()) << CheckTlsFiles(tls).message();
  for (const std::string& key : {tls.key_path, folder_ + "/a/ca.key"}) {
    struct stat info;
    ASSERT_EQ(stat(key.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << key;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/a")) EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos);
  // A later call goes on with the same authority, and never writes over a host's pair.
  std::string authority = Read(tls.authority_path);
  std::string certificate = Read(tls.certificate_path);
  EXPECT_TRUE(CheckTlsFiles(Issue("a", "worker2")).ok());
  Result<IssuedCertificates> again = IssueCertificates({.folder = folder_ + "/a", .hosts = {"worker1"}});
  EXPECT_EQ(again.status().code(), StatusCode::kBadConfiguration);
  EXPECT_NE(again.status().message().find(tls.key_path), std::string::npos) << again.status().message();
  EXPECT_EQ(Read(tls.authority_path), authority);
  EXPECT_EQ(Read(tls.certificate_path), certificate);
  EXPECT_EQ(Issue("a", "::1").certificate_path, folder_ + "/a/__1.pem");
}

TEST_F(TlsTest, RefusesBadHostsAndBrokenAuthorities) {
  for (const char* host : {"", "a,,b", "host:80", "[::1]", "../x", "a b", "ca", "fe80::1%eth0"}) {
    Result<IssuedCertificates> issued = IssueCertificates({.folder = folder_ + "/b", .hosts = {host}});
    ASSERT_FALSE(issued.ok()) << host;
    EXPECT_EQ(issued.status().code(), StatusCode::kUsage);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/b"));  // nothing was begun
  Issue("c", "x");
  std::filesystem::remove(folder_ + "/c/ca.key");
  Result<IssuedCertificates> halved = IssueCertificates({.folder = folder_ + "/c", .hosts = {"y"}});
  EXPECT_EQ(halved.status().code(), StatusCode::kBadConfiguration);
  Write(folder_ + "/file", "x");
  EXPECT_EQ(IssueCertificates({.folder = folder_ + "/file", .hosts = {"y"}}).status().code(), StatusCode::kBadConfiguration);
}

TEST_F(TlsTest, NamesTheFileThatIsWrong) {
  const TlsOptions good = Issue("a", "localhost,127.0.0.1");
  const TlsOptions other = Issue("a", "other");
  const TlsOptions expired = Issue("a", "expired", -1);
  Write(folder_ + "/text", "no certificate");
  Write(folder_ + "/empty", "");
  struct Row {
    const char* name;
    TlsOptions tls;
    std::string says;
  } rows[] = {
      {"no key given", {good.certificate_path, "", good.authority_path}, "--tls-key is missing"},
      {"no authority given", {good.certificate_path, good.key_path, ""}, "--tls-ca is missing"},
      {"authority alone", {"", "", good.authority_path}, "--tls-cert is missing"},
      {"missing file", {folder_ + "/nowhere", good.key_path, good.authority_path}, "--tls-cert " + folder_ + "/nowhere: No such file"},
      {"a folder", {folder_, good.key_path, good.authority_path}, "--tls-cert " + folder_},
      {"empty", {good.certificate_path, folder_ + "/empty", good.authority_path}, "--tls-key " + folder_ + "/empty"},
      {"no PEM certificate", {folder_ + "/text", good.key_path, good.authority_path}, "holds no PEM certificate"},
      {"no PEM key", {good.certificate_path, folder_ + "/text", good.authority_path}, "holds no PEM private key"},
      {"no PEM authority", {good.certificate_path, good.key_path, folder_ + "/text"}, "--tls-ca " + folder_ + "/text"},
      {"certificate for key", {good.certificate_path, good.certificate_path, good.authority_path}, "holds no PEM private key"},
      {"another's key", {good.certificate_path, other.key_path, good.authority_path}, "is not the key of " + good.certificate_path},
      {"expired", {expired.certificate_path, expired.key_path, expired.authority_path}, "expired on"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Status status = CheckTlsFiles(row.tls);
    EXPECT_EQ(status.code(), StatusCode::kBadConfiguration);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status.message();
    EXPECT_EQ(ConnectShard("127.0.0.1:1", row.tls).status().code(), StatusCode::kBadConfiguration);
    EXPECT_FALSE(ServerCredentialsOf(row.tls).ok());
  }
}

TEST(ConnectShardTest, RefusesBadAddressesAndPlaintextOffLoopback) {
  EXPECT_EQ(ConnectShard("host:99999", {}).status().code(), StatusCode::kUsage);
  EXPECT_NE(ConnectShard("host:99999", {}).status().message().find("host:99999"), std::string::npos);
  EXPECT_EQ(ConnectShard("127.0.0.1:0", {}).status().code(), StatusCode::kUsage);
  EXPECT_EQ(ConnectShard("10.0.0.1:7070", {}).status().code(), StatusCode::kRefused);
  EXPECT_EQ(ConnectShard("worker1", {}).status().code(), StatusCode::kRefused);
  TlsOptions insecure;
  insecure.insecure = true;
  EXPECT_TRUE(ConnectShard("10.0.0.1:7070", insecure).ok());
  for (const char* address : {"127.0.0.1:7070", "::1", "[::1]:7070", "localhost:7070", "unix:/nowhere"}) EXPECT_TRUE(ConnectShard(address, {}).ok()) << address;
}

// The least server that answers Describe.
class DescribingServer {
 public:
  explicit DescribingServer(const TlsOptions& tls, const std::string& host = "127.0.0.1") {
    Result<std::shared_ptr<grpc::ServerCredentials>> credentials = ServerCredentialsOf(tls);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(host + ":0", *credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  int port() const { return port_; }

 private:
  struct Service : pb::Shard::CallbackService {
    grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const pb::DescribeRequest*, pb::DescribeReply* reply) override {
      ShardDescription description;
      description.layer_count = 4;
      description.range = {1, 3};
      *reply = ToProto(description);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
  } service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

Reply<ShardDescription> DescribeOver(const std::string& address, const TlsOptions& tls) {
  Result<std::unique_ptr<ShardLink>> link = ConnectShard(address, tls);
  EXPECT_TRUE(link.ok()) << link.status().message();
  std::promise<Reply<ShardDescription>> promise;
  (*link)->Describe(std::chrono::steady_clock::now() + std::chrono::seconds(20), [&](Reply<ShardDescription> reply) { promise.set_value(std::move(reply)); });
  return promise.get_future().get();
}

std::string FaultOver(const std::string& address, const TlsOptions& tls) {
  Reply<ShardDescription> reply = DescribeOver(address, tls);
  EXPECT_TRUE(std::holds_alternative<TransportFault>(reply));
  return std::holds_alternative<TransportFault>(reply) ? std::get<TransportFault>(reply).message : "";
}

TEST_F(TlsTest, MutualTlsLetsInTheRightOnesAndTellsTheOthersWhy) {
  const TlsOptions worker = Issue("ours", "localhost,127.0.0.1");
  const TlsOptions gateway = Issue("ours", "gateway");
  const TlsOptions foreign = Issue("theirs", "localhost,127.0.0.1");
  DescribingServer server(worker);
  const std::string address = "127.0.0.1:" + std::to_string(server.port());

  EXPECT_TRUE(std::holds_alternative<ShardDescription>(DescribeOver(address, gateway)));
  EXPECT_TRUE(std::holds_alternative<ShardDescription>(DescribeOver("localhost:" + std::to_string(server.port()), gateway)));

  // Ours is foreign to the worker, but we would trust it: only the worker can refuse.
  TlsOptions stranger = foreign;
  stranger.authority_path = worker.authority_path;
  std::string stranger_says = FaultOver(address, stranger);
  EXPECT_NE(stranger_says.find("does not accept our certificate " + foreign.certificate_path), std::string::npos) << stranger_says;
  // The worker's is foreign to us.
  std::string foreign_says = FaultOver(address, foreign);
  EXPECT_NE(foreign_says.find("was not issued by " + foreign.authority_path), std::string::npos) << foreign_says;
  std::string none_says = FaultOver(address, {});
  EXPECT_NE(none_says.find("this side needs --tls-cert"), std::string::npos) << none_says;

  // The other way round: TLS to a worker that has none.
  DescribingServer plain(TlsOptions{});
  std::string plain_says = FaultOver("127.0.0.1:" + std::to_string(plain.port()), gateway);
  EXPECT_NE(plain_says.find("does not speak TLS"), std::string::npos) << plain_says;

  // Issued for another name.
  DescribingServer misnamed(gateway);
  std::string misnamed_says = FaultOver("127.0.0.1:" + std::to_string(misnamed.port()), gateway);
  EXPECT_NE(misnamed_says.find("another host name"), std::string::npos) << misnamed_says;
}

TEST_F(TlsTest, AnExpiredWorkerIsRefusedByTheClient) {
  // Such a worker would not start (CheckTlsFiles), so its credentials are made without the check.
  const TlsOptions expired = Issue("ours", "localhost,127.0.0.1", -1);
  const TlsOptions gateway = Issue("ours", "gateway");
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = Read(expired.authority_path);
  options.pem_key_cert_pairs.push_back({Read(expired.key_path), Read(expired.certificate_path)});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  pb::Shard::CallbackService service;
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::string says = FaultOver("127.0.0.1:" + std::to_string(port), gateway);
  EXPECT_NE(says.find("or has expired"), std::string::npos) << says;
}

}  // namespace
}  // namespace meshnet
