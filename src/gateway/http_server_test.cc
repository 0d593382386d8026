#include "gateway/http_server.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <latch>

#include "gateway/raw_http_client.h"

namespace meshnet::gateway {
namespace {

using namespace std::chrono_literals;

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    auto bound = BindAndListen({"127.0.0.1", 0});
    ASSERT_TRUE(bound.ok());
    address_ = bound->address;
    HttpHandlers handlers;
    handlers.gate = [this](const HttpRequest& head) { return gate_ ? gate_(head) : std::nullopt; };
    handlers.handle = [this](const HttpRequest& request, const Peer& peer) { return handle_(request, peer); };
    handlers.describe_error = [](int status) { return "{\"error\":" + std::to_string(status) + "}"; };
    handlers.finish = [](const HttpRequest&, int, HttpHeaders* headers) { headers->emplace_back("x-finished", "yes"); };
    auto server = HttpServer::Start(*bound, options, handlers);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  std::string address_;
  std::function<std::optional<HttpReply>(const HttpRequest&)> gate_;
  std::function<HttpReply(const HttpRequest&, const Peer&)> handle_ = [](const HttpRequest& request, const Peer&) {
    HttpReply reply;
    reply.body = request.method + " " + request.path + " " + request.body;
    return reply;
  };
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  Start();
  RawHttpClient client(address_);
  for (int i = 0; i < 300; ++i) {  // more than httplib's own 100 per connection
    client.Send("POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    const std::string reply = client.ReadReply();
    ASSERT_EQ(StatusOf(reply), 200);
    ASSERT_EQ(BodyOf(reply), "POST /a abc");
    ASSERT_NE(reply.find("x-finished: yes"), std::string::npos);
  }
  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawHttpClient client(address_);
  client.Send("GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 1\r\n\r\nxGET /3 HTTP/1.1\r\n\r\n");
  EXPECT_EQ(BodyOf(client.ReadReply()), "GET /1 ");
  EXPECT_EQ(BodyOf(client.ReadReply()), "POST /2 x");
  EXPECT_EQ(BodyOf(client.ReadReply()), "GET /3 ");
}

TEST_F(HttpServerTest, ItsOwnErrorsAreJsonAndClose) {
  Start({.body_bytes_max = 1000});
  const struct {
    const char* name;
    std::string bytes;
    int status;
  } rows[] = {
      {"no method", "GET\r\n\r\n", 400},
      {"unknown method", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"no colon", "GET / HTTP/1.1\r\nnonsense\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400},
      {"length and chunks", "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"declared too large", "POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x'), 413},
      {"declared absurd", "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
      {"chunked too large", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') + "\r\n0\r\n\r\n", 413},
      {"longest target", "GET /" + std::string(32768 - 16, 'x') + " HTTP/1.1\r\n\r\n", 404},
      {"one more", "GET /" + std::string(32768 - 15, 'x') + " HTTP/1.1\r\n\r\n", 414},
      {"long target", "GET /" + std::string(40000, 'x') + " HTTP/1.1\r\nConnection: close\r\n\r\n", 414},
      {"very long target", "GET /" + std::string(3000000, 'x') + " HTTP/1.1\r\n\r\n", 414},
      {"a large head", "GET / HTTP/1.1\r\nh: " + std::string(3000000, 'x') + "\r\n\r\n", 431},
      {"a large header", "GET / HTTP/1.1\r\nh: " + std::string(40000, 'x') + "\r\n\r\n", 400},
      {"long path", "GET /" + std::string(3000, 'x') + " HTTP/1.1\r\n\r\n", 404},
      {"too many headers", [] {
         std::string head = "GET / HTTP/1.1\r\n";
         for (int i = 0; i < 200; ++i) head.append("h").append(std::to_string(i)).append(": x\r\n");
         return head + "\r\n";
       }(), 400},
  };
  for (const auto& row : rows) {
    RawHttpClient client(address_);
    client.Send(row.bytes);
    const std::string reply = client.ReadToEnd(5s);
    EXPECT_TRUE(client.closed_by_server()) << row.name;
    EXPECT_EQ(StatusOf(reply), row.status) << row.name << ": " << reply;
    EXPECT_EQ(BodyOf(reply), "{\"error\":" + std::to_string(row.status) + "}") << row.name;
  }
}

TEST_F(HttpServerTest, NothingIsServedInRanges) {
  Start();
  RawHttpClient client(address_);
  for (const char* range : {"Range: bytes=0-1", "range: bytes=99999-", "RANGE: bytes=5-2", "Range: lalala", "Range:", "A: b\r\nRange: bytes=-1\r\nrAnge: x"}) {
    client.Send("GET /a HTTP/1.1\r\n" + std::string(range) + "\r\n\r\n");
    const std::string got = client.ReadReply();
    EXPECT_EQ(StatusOf(got), 200) << range;
    EXPECT_EQ(BodyOf(got), "GET /a ") << range;
    // The body is nobody's header.
    client.Send("POST /a HTTP/1.1\r\nContent-Length: 11\r\n" + std::string(range) + "\r\n\r\nab\r\nrange: ");
    const std::string posted = client.ReadReply();
    EXPECT_EQ(StatusOf(posted), 200) << range;
    EXPECT_EQ(BodyOf(posted), "POST /a ab\r\nrange: ") << range;
  }
  client.Send("HEAD /a HTTP/1.1\r\n\r\n");
  const std::string& head = client.ReadUntil("\r\n\r\n");
  EXPECT_EQ(StatusOf(head), 200);
  EXPECT_EQ(head.find("Accept-Ranges"), std::string::npos) << head;
}

TEST_F(HttpServerTest, AThrownHandlerIsA500) {
  handle_ = [](const HttpRequest&, const Peer&) -> HttpReply { throw std::bad_alloc(); };
  Start();
  RawHttpClient client(address_);
  client.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadReply()), 500);
}

TEST_F(HttpServerTest, TheGateAnswersBeforeTheBodyIsSent) {
  gate_ = [](const HttpRequest&) {
    HttpReply reply;
    reply.status = 401;
    reply.body = "no";
    return std::optional(reply);
  };
  Start();
  RawHttpClient client(address_);
  client.Send("POST / HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadReply()), 401);
  // A client that sends its large body first, and only then reads, still sees the reply.
  RawHttpClient eager(address_);
  eager.Send("POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + std::string(5000000, 'x'));
  EXPECT_EQ(StatusOf(eager.ReadReply()), 401);
}

TEST_F(HttpServerTest, NonsenseAndIdleConnectionsCostNoThread) {
  Start({.threads_max = 2});
  std::vector<std::unique_ptr<RawHttpClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<RawHttpClient>(address_));
  for (int i = 0; i < 300; ++i) RawHttpClient(address_).Close();
  for (int i = 0; i < 20; ++i) {
    RawHttpClient hello(address_);
    hello.Send(std::string("\x16\x03\x01\x02\x00\x01", 6) + std::string(500, '\0'));
    hello.ReadToEnd();
    EXPECT_TRUE(hello.closed_by_server());
  }
  RawHttpClient client(address_);
  client.Send("GET /alive HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadReply()), 200);
}

TEST_F(HttpServerTest, SlowSendersMakeWay) {
  Start({.slow_read = 50ms, .threads_max = 2});
  std::vector<std::unique_ptr<RawHttpClient>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<RawHttpClient>(address_));
    slow.back()->Send("POST / HTTP/1.1\r\nContent-Le");
  }
  RawHttpClient client(address_);
  client.Send("GET /alive HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadReply()), 200);
}

TEST_F(HttpServerTest, ASilentSenderIsCutOff) {
  Start({.idle_read_limit = 200ms});
  RawHttpClient head(address_), body(address_);
  head.Send("GET / HT");
  body.Send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf");
  head.ReadToEnd();
  body.ReadToEnd();
  EXPECT_TRUE(head.closed_by_server());
  EXPECT_TRUE(body.closed_by_server());
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedInTheEnd) {
  Start({.keep_alive = 200ms});
  RawHttpClient client(address_);
  client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(HttpServerTest, BeyondItsBoundTheLongestIdleConnectionGoes) {
  Start({.connections_max = 3});
  RawHttpClient first(address_), second(address_), third(address_);
  first.Send("GET / HTTP/1.1\r\n\r\n");
  first.ReadReply();  // now it is the youngest
  RawHttpClient fourth(address_);
  second.ReadToEnd();
  EXPECT_TRUE(second.closed_by_server());
  fourth.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusOf(fourth.ReadReply()), 200);
  first.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusOf(first.ReadReply()), 200);
}

// The handler waits for the peer to change, and tells what it saw.
TEST_F(HttpServerTest, TellsAClosedClientFromAHalfClosedOne) {
  std::promise<PeerState> seen, after_write;
  handle_ = [&](const HttpRequest&, const Peer& peer) {
    HttpReply reply;
    reply.stream = [&](BodyWriter& writer) {
      const int never = eventfd(0, EFD_CLOEXEC);
      PeerState state = peer.WaitFor(never, PeerState::kOpen, 10s);
      seen.set_value(state);
      writer.Write("probe");
      if (state == PeerState::kHalfClosed) state = peer.WaitFor(never, state, 300ms);
      after_write.set_value(state);
      ::close(never);
      return writer.Write("end");
    };
    return reply;
  };
  Start();
  {
    RawHttpClient gone(address_);
    gone.Send("GET / HTTP/1.1\r\n\r\n");
    gone.ReadUntil("\r\n\r\n");
    gone.Close();
    EXPECT_EQ(seen.get_future().get(), PeerState::kHalfClosed);
    EXPECT_EQ(after_write.get_future().get(), PeerState::kGone);
  }
  seen = {};
  after_write = {};
  RawHttpClient half(address_);
  half.Send("GET / HTTP/1.1\r\n\r\n");
  half.ReadUntil("\r\n\r\n");
  half.CloseWriteSide();
  EXPECT_EQ(seen.get_future().get(), PeerState::kHalfClosed);
  EXPECT_EQ(after_write.get_future().get(), PeerState::kHalfClosed);
  EXPECT_EQ(BodyOf(half.ReadToEnd()), "probeend");
}

TEST_F(HttpServerTest, StopBreaksStreamsAndWaitsForTheirHandlers) {
  std::latch running(1);
  std::atomic<bool> returned = false;
  handle_ = [&](const HttpRequest&, const Peer& peer) {
    HttpReply reply;
    reply.stream = [&](BodyWriter&) {
      const int never = eventfd(0, EFD_CLOEXEC);
      running.count_down();
      EXPECT_EQ(peer.WaitFor(never, PeerState::kOpen, 60s), PeerState::kGone);
      ::close(never);
      returned = true;
      return false;
    };
    return reply;
  };
  Start();
  RawHttpClient client(address_), idle(address_);
  client.Send("GET / HTTP/1.1\r\n\r\n");
  running.wait();
  server_->Stop();
  EXPECT_TRUE(returned);
  client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_FALSE(RawHttpClient(address_).connected());
}

TEST_F(HttpServerTest, ABlockedReaderIsGivenUpAfterTheWriteLimit) {
  std::promise<bool> written;
  handle_ = [&](const HttpRequest&, const Peer&) {
    HttpReply reply;
    reply.stream = [&](BodyWriter& writer) {
      const std::string block(1 << 20, 'x');
      bool ok = true;
      for (int i = 0; i < 64 && ok; ++i) ok = writer.Write(block);
      written.set_value(ok);
      return ok;
    };
    return reply;
  };
  Start({.idle_write_limit = 200ms});
  RawHttpClient client(address_);
  client.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_FALSE(written.get_future().get());
}

TEST_F(HttpServerTest, Http10StreamsEndWithTheConnection) {
  handle_ = [](const HttpRequest&, const Peer&) {
    HttpReply reply;
    reply.stream = [](BodyWriter& writer) { return writer.Write("all"); };
    return reply;
  };
  Start();
  RawHttpClient client(address_);
  client.Send("GET / HTTP/1.0\r\n\r\n");
  const std::string reply = client.ReadToEnd();
  EXPECT_EQ(reply.find("chunked"), std::string::npos);
  EXPECT_EQ(BodyOf(reply), "all");
}

}  // namespace
}  // namespace meshnet::gateway
