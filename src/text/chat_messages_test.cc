#include "text/chat_messages.h"

#include <gtest/gtest.h>

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

std::variant<ordered_json, ApiError> Normalise(const std::string& messages) { return NormaliseMessages(ordered_json::parse(messages)); }

// Our own tool-call reply comes back through openai-python's model_dump() with nulls, and other clients leave things out (L#13471, L#13521).
TEST(ChatMessagesTest, AllSpellingsOfAnEmptyContentAreOne) {
  const std::string call = R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}])";
  const std::string wanted = R"([{"role":"assistant","content":"",)" + call + "}]";
  const std::string spellings[] = {
      R"([{"role":"assistant","content":null,)" + call + "}]",
      R"([{"role":"assistant",)" + call + "}]",
      R"([{"role":"assistant","content":"",)" + call + "}]",
      R"([{"role":"assistant","content":[],)" + call + "}]",
      R"([{"role":"assistant","content":[{"type":"text"}],)" + call + "}]",
      R"([{"role":"assistant","content":[{"type":"text","text":""}],)" + call + "}]",
      R"([{"content":null,"refusal":null,"role":"assistant","annotations":null,"audio":null,"function_call":null,"tool_calls":[{"id":"c1",)"
      R"("function":{"arguments":"{\"a\": 1}","name":"f"},"type":"function","index":0}],"reasoning_content":null}])",
  };
  for (const std::string& spelling : spellings) {
    auto normal = Normalise(spelling);
    ASSERT_TRUE(std::holds_alternative<ordered_json>(normal)) << spelling << ": " << std::get<ApiError>(normal).message;
    // Order of keys does not matter to a template, the values do.
    EXPECT_EQ(nlohmann::json::parse(std::get<ordered_json>(normal).dump()), nlohmann::json::parse(wanted)) << spelling;
  }
}

TEST(ChatMessagesTest, PartsBecomeText) {
  auto normal = Normalise(R"([{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},
                              {"role":"tool","content":null,"tool_call_id":"x"},{"role":"assistant","content":"d","reasoning":"why"}])");
  ASSERT_TRUE(std::holds_alternative<ordered_json>(normal));
  EXPECT_EQ(std::get<ordered_json>(normal).dump(),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},)"
            R"({"role":"tool","content":"","tool_call_id":"x"},{"role":"assistant","content":"d","reasoning_content":"why"}])");
}

TEST(ChatMessagesTest, EmptyArgumentsAreAnEmptyObject) {
  auto normal = Normalise(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":" "}},{"function":{"name":"g"}},{"function":{"name":"h","arguments":{"a":1}}}]}])");
  ASSERT_TRUE(std::holds_alternative<ordered_json>(normal));
  const ordered_json& calls = std::get<ordered_json>(normal)[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"], "{}");
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  EXPECT_EQ(calls[2]["function"]["arguments"], "{\"a\":1}");
}

TEST(ChatMessagesTest, NamesTheMessageThatIsWrong) {
  struct Case {
    std::string messages;
    std::string param;
    int status = 400;
  };
  const Case cases[] = {
      {R"([])", "messages"},
      {R"({})", "messages"},
      {R"([7])", "messages[0]"},
      {R"([{"content":"a"}])", "messages[0].role"},
      {R"([{"role":"user","content":"a"},{"role":"wizard","content":"a"}])", "messages[1].role"},
      {R"([{"role":7,"content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"system","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":7}])", "messages[0].content"},
      {R"([{"role":"user","content":{"text":"a"}}])", "messages[0].content"},
      {R"([{"role":"user","content":["a"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text","text":7}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"poem","text":"a"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://x"}}]}])", "messages[0].content[1]", 501},
      {R"([{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}])", "messages[0].content[0]", 501},
      {R"([{"role":"user","content":"a","colour":"red"}])", "messages[0].colour"},
      {R"([{"role":"user","content":"a","tool_calls":[{"function":{"name":"f"}}]}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":["f"]}])", "messages[0].tool_calls[0]"},
      {R"([{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"f"}}]}])", "messages[0].tool_calls[0].type"},
      {R"([{"role":"assistant","tool_calls":[{}]}])", "messages[0].tool_calls[0].function"},
      {R"([{"role":"assistant","tool_calls":[{"function":{}}]}])", "messages[0].tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":"}}]}])", "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":")" + std::string(60000, '[') + R"("}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const Case& c : cases) {
    auto normal = Normalise(c.messages);
    ASSERT_TRUE(std::holds_alternative<ApiError>(normal)) << c.messages;
    EXPECT_EQ(std::get<ApiError>(normal).param, c.param) << std::get<ApiError>(normal).message;
    EXPECT_EQ(std::get<ApiError>(normal).status, c.status) << c.messages;
  }
}

}  // namespace
}  // namespace meshnet::text
