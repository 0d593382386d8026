#include "cli/chat_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

using testing::ElementsAre;

TEST(EventSplitterTest, FindsEventsHoweverTheBytesAreCut) {
  std::string stream = ": comment\n\ndata: {\"a\":1}\n\ndata:two\r\n\r\nevent: x\ndata: three\ndata: lines\n\ndata: [DONE]\n\ndata: unfinished";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    EventSplitter splitter;
    std::vector<std::string> events;
    for (size_t i = 0; i < stream.size(); i += piece) {
      for (std::string& event : splitter.Feed(std::string_view(stream).substr(i, piece))) events.push_back(std::move(event));
    }
    EXPECT_THAT(events, ElementsAre("{\"a\":1}", "two", "three\nlines", "[DONE]")) << piece;
  }
}

TEST(EventSplitterTest, AnEndlessEventIsNotKept) {
  for (const std::string& piece : {std::string(1 << 16, 'x'), "data: " + std::string(1 << 16, 'x') + "\n"}) {
    EventSplitter splitter;
    size_t fed = 0;
    for (; fed <= 2 * kEventBytesMax && !splitter.overflowed(); fed += piece.size()) EXPECT_TRUE(splitter.Feed(piece).empty());
    EXPECT_TRUE(splitter.overflowed());
    EXPECT_GE(fed, kEventBytesMax - piece.size()) << "a large event is no fault";
    EXPECT_TRUE(splitter.Feed("\n\ndata: more\n\n").empty());
  }
}

TEST(ConversationTest, TakesTextOutOfAStreamChunk) {
  struct Row {
    const char* event;
    const char* content;
    const char* reasoning;
  };
  for (const Row& row : {
           Row{R"({"choices":[{"delta":{"content":"hi"}}]})", "hi", ""},
           Row{R"({"choices":[{"delta":{"reasoning_content":"hm","content":null}}]})", "", "hm"},
           Row{R"({"choices":[{"delta":{}}]})", "", ""},
           Row{R"({"choices":[]})", "", ""},
           Row{R"({"choices":[7]})", "", ""},
           Row{R"({"usage":{}})", "", ""},
       }) {
    AnswerPiece piece = PieceOf(nlohmann::ordered_json::parse(row.event));
    EXPECT_EQ(piece.content, row.content) << row.event;
    EXPECT_EQ(piece.reasoning, row.reasoning) << row.event;
  }
}

}  // namespace
}  // namespace meshnet::cli
