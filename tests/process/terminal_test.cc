// run and chat in front of a person: a pseudo terminal.
#include <gmock/gmock.h>
#include <signal.h>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using testing::HasSubstr;

class TerminalTest : public ProcessBed {
 protected:
  std::unique_ptr<TestProcess> Chat(const std::vector<std::string>& arguments) {
    StartOptions options = Options();
    options.terminal = true;
    std::unique_ptr<TestProcess> process = Start(arguments, options);
    EXPECT_TRUE(WaitForPrompts(*process, 1)) << process->out();
    return process;
  }
  // The prompt is drawn at each key, so what counts is the switch to pasting that only a new line makes.
  bool WaitForPrompts(TestProcess& process, size_t count) {
    return Eventually([&process, count] {
      std::string out = process.out(), mark = "\x1b[?2004h";
      size_t found = 0;
      for (size_t place = 0; (place = out.find(mark, place)) != std::string::npos; ++place) ++found;
      return found >= count;
    });
  }
};

TEST_F(TerminalTest, ControlCEndsTheAnswerNotTheProgram) {
  std::unique_ptr<TestProcess> chat = Chat({"run", TextModel(), "--shards", "2", "-t", "1", "--temp", "0", "-n", "1000"});
  size_t before = chat->out().size();
  chat->Type("hello\r");
  // The answer is on its way once there is more than the echo of the line.
  ASSERT_TRUE(Eventually([&] { return chat->out().size() > before + 200; })) << chat->out();
  chat->Type("\x03");
  ASSERT_TRUE(WaitForPrompts(*chat, 2)) << chat->out();
  EXPECT_TRUE(chat->running());
  chat->Type("\x03");
  ASSERT_TRUE(WaitForPrompts(*chat, 3)) << "at the prompt it only throws the line away";
  chat->Type("\x04");
  EXPECT_EQ(chat->Wait(), 0) << chat->out();
  EXPECT_THAT(TemporaryNames(), testing::ElementsAre());
}

TEST_F(TerminalTest, LinesAreEdited) {
  std::unique_ptr<TestProcess> chat = Chat({"run", TextModel(), "--shards", "1", "-t", "1", "--temp", "0", "-n", "4"});
  chat->Type("xexit\x01\x1b[3~/\r");  // start of line, delete, a slash: "/exit"
  EXPECT_EQ(chat->Wait(), 0) << chat->out();
}

TEST_F(TerminalTest, SigtermEndsAChatAndItsWorkers) {
  std::unique_ptr<TestProcess> chat = Chat({"run", TextModel(), "--shards", "2", "-t", "1"});
  std::vector<pid_t> workers = ChildrenOf(chat->pid());
  EXPECT_EQ(workers.size(), 2u);
  chat->Signal(SIGTERM);
  EXPECT_EQ(chat->Wait(), 0);
  for (pid_t worker : workers) EXPECT_FALSE(IsAlive(worker));
  EXPECT_THAT(TemporaryNames(), testing::ElementsAre());
}

TEST_F(TerminalTest, AChatWithAGatewayIsTheSame) {
  Server server = Serve({TextModel(), "--shards", "2"});
  std::unique_ptr<TestProcess> chat = Chat({"chat", "--url", server.url, "--temp", "0", "-n", "1000"});
  size_t before = chat->out().size();
  chat->Type("hello\r");
  ASSERT_TRUE(Eventually([&] { return chat->out().size() > before + 200; })) << chat->out();
  chat->Type("\x03");
  ASSERT_TRUE(WaitForPrompts(*chat, 2)) << chat->out();
  chat->Type("\x04");
  EXPECT_EQ(chat->Wait(), 0) << chat->out();
}

}  // namespace
}  // namespace meshnet::process
