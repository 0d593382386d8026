// Machines that are not like ours: full disks, strict umasks, users without a name, a process that is PID 1, files of other machines and times.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class SurroundingsTest : public ProcessBed {
 protected:
  ~SurroundingsTest() override {
    for (const std::string& folder : mounted_) umount2(folder.c_str(), MNT_DETACH);
  }

  // A disk of `size` at one of the bed's folders. False without the right to mount one.
  bool MountDisk(const std::string& name, const std::string& size) {
    if (geteuid() != 0 || mount("meshnet-test", Path(name).c_str(), "tmpfs", 0, ("mode=700,size=" + size).c_str()) != 0) return false;
    mounted_.push_back(Path(name));
    return true;
  }
  StartOptions Wrapped(const std::vector<std::string>& wrapper) const {
    StartOptions options = Options();
    options.wrapper = wrapper;
    return options;
  }
  static std::vector<std::string> Shell(const std::string& script) { return {"/bin/sh", "-c", script, "sh"}; }
  static std::string Answer(const std::string& url) {
    HttpReply reply = Post(url, "/v1/completions", {{"prompt", "hello"}, {"max_tokens", 8}, {"temperature", 0}, {"ignore_eos", true}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json::parse(reply.body)["choices"][0]["text"].get<std::string>() : "";
  }
  std::vector<std::filesystem::path> FilesIn(const std::string& name) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(Path(name))) files.push_back(entry.path());
    return files;
  }

 private:
  std::vector<std::string> mounted_;
};

TEST_F(SurroundingsTest, AFullCacheIsASentenceAndLeavesNoShard) {
  std::string model = TextModel();
  if (!MountDisk("cache", "96k")) GTEST_SKIP() << "mounting a tmpfs needs root";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"serve", model, "--shards", "2", "--port", "0"},
                                                    std::vector<std::string>{"run", model, "--shards", "2", "-p", "x"},
                                                    std::vector<std::string>{"worker", "--model", model, "--layers", "0:2", "--listen", "127.0.0.1:0"}}) {
    Finished finished = Meshnet(arguments);
    EXPECT_EQ(finished.code, 1) << arguments[0] << finished.err;
    EXPECT_THAT(finished.err, testing::AllOf(HasSubstr("needs "), HasSubstr("are free on its disk"))) << arguments[0];
    for (const std::filesystem::path& file : FilesIn("cache")) {
      EXPECT_NE(file.extension(), ".gguf") << file;
      EXPECT_NE(file.extension(), ".tmp") << file;
    }
  }
}

TEST_F(SurroundingsTest, ATemporaryFolderOfAFewPagesIsEnough) {
  if (!MountDisk("tmp", "16k")) GTEST_SKIP() << "mounting a tmpfs needs root";
  Finished finished = Meshnet({"run", TextModel(), "--shards", "2", "-t", "1", "-p", "hello", "-n", "4"});
  EXPECT_EQ(finished.code, 0) << finished.err;
}

TEST_F(SurroundingsTest, GoesOnWhenTheDiskOfItsLogIsFull) {
  Server server = Serve({TextModel(), "--shards", "2"}, Wrapped(Shell("exec \"$@\" 2>/dev/full")));
  std::string text = Answer(server.url);
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[1], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status != 200; }));
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200; }));
  EXPECT_EQ(Answer(server.url), text);
  server.process->Signal(SIGTERM);
  EXPECT_EQ(server.process->Wait(), 0);
}

// What is removed while it serves is made again when a worker has to be started anew: the shard, and the folder of the workers' sockets.
TEST_F(SurroundingsTest, ItsFoldersMayGoWhileItServes) {
  Server server = Serve({TextModel(), "--shards", "2"});
  const std::string text = Answer(server.url);
  std::filesystem::remove_all(Path("cache"));
  for (const std::string& name : TemporaryNames()) std::filesystem::remove_all(Path("tmp/" + name));
  const pid_t victim = WorkerStatus(server.url, 1)["pid"].get<pid_t>();
  kill(victim, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status != 200; }));
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200 || !server.process->running(); }));
  EXPECT_EQ(Answer(server.url), text) << server.process->err();
}

TEST_F(SurroundingsTest, StreamsMayBeClosed) {
  const std::vector<std::string> run = {"run", TextModel(), "--shards", "2", "-t", "1", "-p", "hello", "-n", "4"};
  for (const char* closed : {"<&-", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"}) {
    std::filesystem::remove_all(Path("cache"));
    const Finished finished = Meshnet(run, Wrapped(Shell(std::string("exec \"$@\" ") + closed)));
    EXPECT_EQ(finished.code, 0) << closed << finished.err;
    EXPECT_EQ(finished.out.empty(), std::string(closed) == "<&- >&- 2>&-") << closed;
  }
}

TEST_F(SurroundingsTest, AnOutputThatIsLostIsNoSuccess) {
  const std::string model = TextModel();
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", model, "--json"}, std::vector<std::string>{"--version"}}) {
    const Finished finished = Meshnet(arguments, Wrapped(Shell("exec \"$@\" >/dev/full")));
    EXPECT_EQ(finished.code, 1) << arguments[0];
    EXPECT_THAT(finished.err, HasSubstr("stdout cannot be written: No space left on device")) << arguments[0];
  }
}

TEST_F(SurroundingsTest, WhatItKeepsIsItsOwnersOnly) {
  for (const char* umask : {"022", "077"}) {
    std::filesystem::remove_all(Path("cache"));
    Finished finished = Meshnet({"run", TextModel(), "--shards", "2", "-t", "1", "-p", "hello", "-n", "4"},
                                Wrapped(Shell(std::string("umask ") + umask + "; exec \"$@\"")));
    ASSERT_EQ(finished.code, 0) << umask << finished.err;
    size_t files = 0;
    for (const std::filesystem::path& file : FilesIn("cache")) {
      struct stat info = {};
      ASSERT_EQ(stat(file.c_str(), &info), 0);
      // Shards are as the umask says, in folders that nobody else can enter.
      bool shard = file.extension() == ".gguf" && std::string(umask) == "022";
      EXPECT_EQ(info.st_mode & 077, shard ? 044u : 0u) << umask << " " << file;
      ++files;
    }
    EXPECT_GT(files, 5u);
  }
}

TEST_F(SurroundingsTest, AUserWithoutANameCanUseIt) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  std::string model = TextModel();
  StartOptions options = Wrapped({"/usr/bin/setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"});
  options.unset = {"HOME"};
  options.environment.erase("HOME");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  for (const char* name : {"cache", "tmp"}) ASSERT_EQ(chmod(Path(name).c_str(), 0777), 0);
  if (Meshnet({"--version"}, options).code != 0) GTEST_SKIP() << "another user cannot reach the build folder";
  Finished finished = Meshnet({"run", model, "--shards", "2", "-t", "1", "-p", "hello", "-n", "4"}, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
}

TEST_F(SurroundingsTest, AsPidOneItServesAndEndsOnSigterm) {
  StartOptions options = Wrapped({"/usr/bin/unshare", "--fork", "--kill-child", "--pid", "--mount-proc"});
  if (geteuid() != 0 || Meshnet({"--version"}, options).code != 0) GTEST_SKIP() << "a PID namespace needs root";
  Server server = Serve({TextModel(), "--shards", "2"}, options);
  std::vector<pid_t> first = ChildrenOf(server.process->pid());
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(json::parse(Get(server.url, "/cluster/v1/status").body)["workers"].size(), 2u);
  EXPECT_NE(Answer(server.url), "");
  std::vector<pid_t> workers = ChildrenOf(first[0]);
  EXPECT_EQ(workers.size(), 2u);
  kill(first[0], SIGTERM);
  EXPECT_EQ(server.process->Wait(), 0) << server.process->err();
  for (pid_t worker : workers) EXPECT_FALSE(IsAlive(worker));
}

TEST_F(SurroundingsTest, FilesOfOtherMachinesAndTimesAreFiveInOneLine) {
  struct Row {
    const char* file;
    const char* says;
  };
  for (const Row& row : {Row{"big_endian", "FUGG"}, Row{"version_swapped", "big-endian"}, Row{"version_99", "version 99"}, Row{"type_43", "type 43"}}) {
    std::string path = Path(std::string(row.file) + ".gguf");
    std::filesystem::copy(std::string(MESHNET_FUZZ_CORPUS) + "/gguf_header/" + row.file, path);
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", path}, std::vector<std::string>{"cut", path, "--shards", "2", "-o", Path("out")},
                                                      std::vector<std::string>{"worker", "--shard", path, "--listen", "127.0.0.1:0"},
                                                      std::vector<std::string>{"serve", path, "--shards", "2", "--port", "0"}}) {
      Finished finished = Meshnet(arguments);
      EXPECT_EQ(finished.code, 5) << arguments[0] << " " << row.file << ": " << finished.err;
      EXPECT_THAT(finished.err, testing::AllOf(HasSubstr(path), HasSubstr(row.says))) << arguments[0];
      EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(SurroundingsTest, AShardWithOneWrongByteIsNotServed) {
  ASSERT_EQ(Meshnet({"cut", TextModel(), "--layers", "0:2", "-o", Path("head.gguf")}).code, 0);
  std::string bytes = tiny::TestFolder::Read(Path("head.gguf"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  tiny::TestFolder::Write(Path("head.gguf"), bytes);
  Finished worker = Meshnet({"worker", "--shard", Path("head.gguf"), "--listen", "127.0.0.1:0"});
  EXPECT_EQ(worker.code, 5) << worker.err;
  EXPECT_THAT(worker.err, HasSubstr(Path("head.gguf")));
}

}  // namespace
}  // namespace meshnet::process
