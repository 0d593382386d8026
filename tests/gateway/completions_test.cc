#include <gtest/gtest.h>

#include <set>

#include "gateway_bed.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

json Completion(const std::string& prompt, uint32_t tokens_max) {
  return {{"prompt", prompt}, {"max_tokens", tokens_max}, {"temperature", 0}};
}
json Chat(const std::string& content, uint32_t tokens_max) {
  return {{"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", tokens_max}, {"temperature", 0}};
}

TEST(CompletionsTest, AWholeBodyHoldsTheAnswerAndItsUsage) {
  GatewayBed bed;
  const std::string reply = bed.Post("/v1/completions", Completion("Once upon a time", 12));
  ASSERT_EQ(StatusOf(reply), 200) << reply;
  EXPECT_NE(reply.find("Content-Type: application/json"), std::string::npos);
  const json body = JsonOf(reply);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], bed.ExpectedCompletion("Once upon a time", 12));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 16);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(body["usage"]["total_tokens"], 28);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(CompletionsTest, AnAnswerThatTheModelEndsStops) {
  GatewayBed bed({.answer_tokens = 5});
  const json body = JsonOf(bed.Post("/v1/completions", Completion("Hello", 100)));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["text"], bed.ExpectedCompletion("Hello", 100));
}

TEST(CompletionsTest, AStreamIsFramedAsTheSdksParseIt) {
  GatewayBed bed;
  json request = Chat("Hi", 6);
  request["stream"] = true;
  const std::string reply = bed.Post("/v1/chat/completions", request);
  ASSERT_EQ(StatusOf(reply), 200) << reply;
  const std::string head = reply.substr(0, reply.find("\r\n\r\n"));
  EXPECT_NE(head.find("Content-Type: text/event-stream"), std::string::npos);
  EXPECT_NE(head.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(head.find("X-Accel-Buffering: no"), std::string::npos);
  EXPECT_NE(head.find("Cache-Control: no-cache"), std::string::npos);
  EXPECT_NE(head.find("x-request-id: req-"), std::string::npos);
  EXPECT_EQ(reply.substr(reply.size() - 5), "0\r\n\r\n");

  const std::string body = BodyOf(reply);
  EXPECT_EQ(body.substr(body.size() - 14), "data: [DONE]\n\n");
  // Nothing but events and comments, each one line and a blank one.
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = body.find("\n\n", begin);
    ASSERT_NE(end, std::string::npos);
    const std::string event = body.substr(begin, end - begin);
    EXPECT_TRUE(event.rfind("data: ", 0) == 0 || event.rfind(':', 0) == 0) << event;
    EXPECT_EQ(event.find('\n'), std::string::npos);
    begin = end + 2;
  }

  std::vector<std::string> events = EventsOf(body);
  events.pop_back();
  std::string text;
  std::set<std::string> ids;
  int finishes = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage")) << "nobody asked for it";
    ids.insert(chunk["id"].get<std::string>());
    ASSERT_EQ(chunk["choices"].size(), 1u);
    const json& choice = chunk["choices"][0];
    EXPECT_EQ(choice["delta"].contains("role"), i == 0);
    if (choice["delta"].contains("content") && choice["delta"]["content"].is_string()) text += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) {
      ++finishes;
      EXPECT_EQ(i, events.size() - 1);
      EXPECT_EQ(choice["finish_reason"], "length");
    }
  }
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(text, bed.ExpectedCompletion("user:Hi\nassistant:", 6));
}

TEST(CompletionsTest, UsageComesInAChunkOfItsOwnWhenAsked) {
  GatewayBed bed;
  json request = Chat("Hi", 6);
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const std::vector<std::string> events = EventsOf(BodyOf(bed.Post("/v1/chat/completions", request)));
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 6);
}

TEST(CompletionsTest, SeveralChoicesDifferAndThePromptCountsOnce) {
  GatewayBed bed;
  json request = Completion("Once upon a time", 12);
  request["n"] = 3;
  request["temperature"] = 1;
  request["seed"] = 7;
  const json first = JsonOf(bed.Post("/v1/completions", request));
  ASSERT_EQ(first["choices"].size(), 3u);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first["choices"][i]["index"], i);
    texts.insert(first["choices"][i]["text"].get<std::string>());
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_EQ(first["usage"]["prompt_tokens"], 16);
  EXPECT_EQ(first["usage"]["completion_tokens"], 36);
  const json again = JsonOf(bed.Post("/v1/completions", request));
  EXPECT_EQ(again["choices"], first["choices"]);
}

TEST(CompletionsTest, SeveralChoicesShareOneStream) {
  GatewayBed bed({.sessions_max = 2});  // fewer sessions than choices: they take turns
  json request = Completion("abc", 5);
  request["n"] = 4;
  request["stream"] = true;
  std::vector<std::string> texts(4);
  std::vector<int> finishes(4);
  for (const std::string& event : EventsOf(BodyOf(bed.Post("/v1/completions", request)))) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
    finishes[choice["index"].get<size_t>()] += !choice["finish_reason"].is_null();
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], bed.ExpectedCompletion("abc", 5)) << i;
    EXPECT_EQ(finishes[i], 1) << i;
  }
}

TEST(CompletionsTest, EachPromptOfAListIsAnsweredAndCounted) {
  GatewayBed bed;
  json request = Completion("", 4);
  request["prompt"] = {"abc", "defgh", "defgh"};
  const json body = JsonOf(bed.Post("/v1/completions", request));
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["choices"][0]["text"], bed.ExpectedCompletion("abc", 4));
  EXPECT_EQ(body["choices"][1]["text"], bed.ExpectedCompletion("defgh", 4));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 13);  // equal prompts are two all the same
}

TEST(CompletionsTest, TheSameOwnersPrefixIsReused) {
  GatewayBed bed;
  const std::string prompt(200, 'p');
  const json first = JsonOf(bed.Post("/v1/completions", Completion(prompt, 4)));
  const json second = JsonOf(bed.Post("/v1/completions", Completion(prompt, 4)));
  EXPECT_EQ(second["choices"], first["choices"]);
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"], 199);
  json other = Completion(prompt, 4);
  other["prompt_cache_key"] = "another";
  const json third = JsonOf(bed.Post("/v1/completions", other));
  EXPECT_EQ(third["choices"], first["choices"]);
  EXPECT_EQ(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(CompletionsTest, ASilentStreamGetsCommentsAndItsHeadAtOnce) {
  BedOptions options;
  options.limits.answer.head_wait = std::chrono::milliseconds(20);
  options.limits.answer.ping_interval = std::chrono::milliseconds(20);
  GatewayBed bed(options);
  bed.shard(1).Block();
  json request = Completion("abc", 4);
  request["stream"] = true;
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", request));
  const std::string silent = client.ReadUntil(": still working\n\n\r\n");
  EXPECT_EQ(StatusOf(silent), 200);
  EXPECT_EQ(silent.find("data:"), std::string::npos);
  bed.shard(1).Unblock();
  std::string text;
  for (const std::string& event : EventsOf(BodyOf(client.ReadUntil("\r\n0\r\n\r\n")))) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, bed.ExpectedCompletion("abc", 4));
}

TEST(CompletionsTest, AFailureInTheMiddleIsAnErrorInTheStream) {
  BedOptions options;
  options.gateway.answer_wait = std::chrono::milliseconds(100);
  GatewayBed bed(options);
  bed.shard(2).Block(6);
  json request = Completion("abc", 100);
  request["stream"] = true;
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", request));
  bed.shard(2).WaitBlocked();
  client.ReadUntil("data: ");
  bed.shard(2).Kill();
  const std::vector<std::string> events = EventsOf(BodyOf(client.ReadUntil("\r\n0\r\n\r\n")));
  ASSERT_FALSE(events.empty());
  const json error = json::parse(events.back());
  EXPECT_EQ(error["error"]["type"], "unavailable_error");
  EXPECT_NE(error["error"]["message"].get<std::string>().find("[4,6)"), std::string::npos) << error;
}

}  // namespace
}  // namespace meshnet::gateway
