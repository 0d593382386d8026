// Shards on disk: written whole or not at all, and found out when a single byte of them changes.
#include "gguf/shard_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <ostream>
#include <thread>

#include "base/sha256.h"
#include "gguf/gguf_writer.h"
#include "gguf/output_file.h"
#include "gguf/shard_keys.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::gguf {
namespace {

using tiny::TestFolder;

class ShardFileTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", folder_.File("cache").c_str(), 1);
    std::filesystem::create_directories(out_);
    tiny::TinyModelOptions options;
    options.layers = 3;
    MakeModel(options);
  }
  void MakeModel(const tiny::TinyModelOptions& options) {
    ASSERT_TRUE(tiny::WriteTinyModel(options, model_).ok());
    Result<ModelFile> file = ModelFile::Open(model_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_.emplace(std::move(file).value());
    shape_ = ReadModelShape(*file_).value();
    Result<Manifest> manifest = BuildManifest(*file_, nullptr);
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    manifest_ = manifest.value();
  }
  Result<WrittenShard> Cut(LayerRange range, const std::string& path, Overwrite overwrite = Overwrite::kRefuse) const {
    const Result<ShardPlan> plan = PlanShard(*file_, shape_, range);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return WriteShard(*file_, *plan, manifest_, path, overwrite, nullptr);
  }
  static Status Verify(const std::string& path) {
    const Result<ModelFile> file = ModelFile::Open(path);
    if (!file.ok()) return file.status();
    const Result<std::optional<ShardIdentity>> identity = ReadShardIdentity(*file);
    if (!identity.ok()) return identity.status();
    if (!identity->has_value()) return Failure("no shard");
    return VerifyShardIdentity(*file, **identity, nullptr);
  }
  std::string Out(const std::string& name) const { return out_ + "/" + name; }
  size_t OutCount() const { return std::distance(std::filesystem::directory_iterator(out_), std::filesystem::directory_iterator()); }

  TestFolder folder_;
  const std::string out_ = folder_.File("out");
  const std::string model_ = folder_.File("model.gguf");
  std::optional<ModelFile> file_;
  ModelShape shape_;
  Manifest manifest_;
};

TEST_F(ShardFileTest, SaysWhatItIsAndIsVerified) {
  std::vector<Sha256Digest> digests;
  for (LayerRange range : {LayerRange{0, 1}, LayerRange{1, 2}, LayerRange{2, 3}, LayerRange{0, 3}}) {
    const Result<WrittenShard> shard = Cut(range, Out(range.Text()));
    ASSERT_TRUE(shard.ok()) << shard.status().message();
    EXPECT_EQ(shard->bytes, std::filesystem::file_size(shard->path));
    const Result<ModelFile> file = ModelFile::Open(shard->path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const Result<std::optional<ShardIdentity>> read = ReadShardIdentity(*file);
    ASSERT_TRUE(read.ok() && read->has_value());
    const ShardIdentity& identity = **read;
    EXPECT_EQ(identity.range, range);
    EXPECT_EQ(identity.layer_count, 3u);
    EXPECT_EQ(identity.model_root, manifest_.model_root);
    EXPECT_EQ(identity.range_digest, shard->range_digest);
    EXPECT_EQ(identity.architecture, "llama");
    EXPECT_EQ(identity.model_name, "tiny llama");
    EXPECT_EQ(identity.vocabulary_size, 256u);
    EXPECT_EQ(identity.boundary_width, 64u);
    EXPECT_TRUE(Verify(shard->path).ok()) << Verify(shard->path).message();
    digests.push_back(identity.range_digest);
  }
  for (size_t i = 1; i < digests.size(); ++i) EXPECT_NE(digests[i], digests[0]);
  const Result<std::optional<ShardIdentity>> plain = ReadShardIdentity(*file_);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->has_value());
}

TEST_F(ShardFileTest, HoldsTheModelsBytesAndSparseHoles) {
  const Result<WrittenShard> shard = Cut({0, 2}, Out("s"));
  ASSERT_TRUE(shard.ok());
  const Result<ModelFile> file = ModelFile::Open(shard->path);
  const std::string model = TestFolder::Read(model_), bytes = TestFolder::Read(shard->path);
  for (const char* name : {"token_embd.weight", "blk.1.ffn_down.weight"}) {
    const TensorInfo *from = file_->FindTensor(name), *to = file->FindTensor(name);
    EXPECT_EQ(model.substr(from->offset, from->bytes), bytes.substr(to->offset, to->bytes)) << name;
  }
  const TensorInfo* hole = file->FindTensor("output.weight");
  EXPECT_EQ(bytes.substr(hole->offset, hole->bytes), std::string(hole->bytes, '\0'));
}

TEST_F(ShardFileTest, CutsAreTheSameBytesEachTime) {
  ASSERT_TRUE(Cut({1, 3}, Out("a")).ok());
  ASSERT_TRUE(Cut({1, 3}, Out("b")).ok());
  EXPECT_EQ(TestFolder::Read(Out("a")), TestFolder::Read(Out("b")));
}

// Every byte of the header, and steps through the data, holes and padding. Refused either by the parser or by the verification, always
// with the file's name; a data byte with its tensor's.
TEST_F(ShardFileTest, OneFlippedBitAnywhereIsRefused) {
  ASSERT_TRUE(Cut({0, 1}, Out("s")).ok());
  const std::string bytes = TestFolder::Read(Out("s"));
  const std::string path = Out("flipped");
  const Result<ModelFile> whole = ModelFile::Open(Out("s"));
  const uint64_t data_begin = whole->tensors()[0].offset;
  for (size_t at = 0; at < bytes.size(); at += at < data_begin ? 13 : 4999) {
    std::string flipped = bytes;
    flipped[at] ^= static_cast<char>(1 << (at % 8));
    TestFolder::Write(path, flipped);
    const Status status = Verify(path);
    ASSERT_FALSE(status.ok()) << "byte " << at;
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    if (at < data_begin) continue;
    for (const TensorInfo& tensor : whole->tensors()) {
      if (at >= tensor.offset && at < tensor.offset + tensor.bytes) {
        EXPECT_NE(status.message().find("\"" + tensor.name + "\""), std::string::npos) << status.message();
      }
    }
  }
}

TEST_F(ShardFileTest, LongerAndShorterFilesAreRefused) {
  ASSERT_TRUE(Cut({0, 1}, Out("s")).ok());
  const std::string bytes = TestFolder::Read(Out("s"));
  TestFolder::Write(Out("long"), bytes + std::string(32, '\0'));
  EXPECT_NE(Verify(Out("long")).message().find("its header asks for"), std::string::npos);
  TestFolder::Write(Out("short"), bytes.substr(0, bytes.size() - 32));
  EXPECT_EQ(Verify(Out("short")).code(), StatusCode::kBadModel);
}

TEST_F(ShardFileTest, RememberedDigestsDoNotHideAChange) {
  ASSERT_TRUE(Cut({0, 1}, Out("s")).ok());
  ASSERT_TRUE(Verify(Out("s")).ok());
  ASSERT_TRUE(Verify(Out("s")).ok());  // from the cache
  struct stat before{};
  ASSERT_EQ(stat(Out("s").c_str(), &before), 0);
  const int descriptor = open(Out("s").c_str(), O_RDWR);
  char byte = 0;
  const off_t at = before.st_size - 5000;
  ASSERT_EQ(pread(descriptor, &byte, 1, at), 1);
  byte ^= 1;
  ASSERT_EQ(pwrite(descriptor, &byte, 1, at), 1);
  // Even with the old modification time.
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(futimens(descriptor, times), 0);
  close(descriptor);
  EXPECT_FALSE(Verify(Out("s")).ok());
}

TEST_F(ShardFileTest, BrokenOrForeignCacheOnlyCostsTime) {
  ASSERT_TRUE(Cut({0, 1}, Out("s")).ok());
  ASSERT_TRUE(Verify(Out("s")).ok());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.File("cache"))) {
    if (entry.is_regular_file()) TestFolder::Write(entry.path(), "nonsense\n");
  }
  EXPECT_TRUE(Verify(Out("s")).ok());
  setenv("XDG_CACHE_HOME", (model_ + "/no-folder").c_str(), 1);
  EXPECT_TRUE(Verify(Out("s")).ok());
}

TEST_F(ShardFileTest, TamperedKeysAreADamagedShardNotAModel) {
  const Result<ShardPlan> plan = PlanShard(*file_, shape_, {0, 1});
  for (const char* key : {kShardRulesKey, kShardBeginKey, kShardEndKey, kShardLayersKey, kShardRootKey, kShardDigestKey}) {
    ASSERT_TRUE(Cut({0, 1}, Out("s"), Overwrite::kForce).ok());
    std::string bytes = TestFolder::Read(Out("s"));
    bytes[bytes.find(key) + 10] ^= 1;
    TestFolder::Write(Out("s"), bytes);
    const Result<ModelFile> file = ModelFile::Open(Out("s"));
    ASSERT_TRUE(file.ok()) << key;
    const Result<std::optional<ShardIdentity>> identity = ReadShardIdentity(*file);
    ASSERT_FALSE(identity.ok()) << key;
    EXPECT_NE(identity.status().message().find("damaged shard"), std::string::npos);
  }
}

TEST_F(ShardFileTest, AShardIsNotCutAgain) {
  ASSERT_TRUE(Cut({0, 2}, Out("s")).ok());
  const Result<ModelFile> shard = ModelFile::Open(Out("s"));
  EXPECT_EQ(PlanShard(*shard, ReadModelShape(*shard).value(), {0, 1}).status().code(), StatusCode::kRefused);
  EXPECT_EQ(BuildManifest(*shard, nullptr).status().code(), StatusCode::kRefused);
}

TEST_F(ShardFileTest, ExistingFilesAreKeptUnlessForced) {
  TestFolder::Write(Out("s"), "mine");
  const Result<WrittenShard> refused = Cut({0, 1}, Out("s"));
  EXPECT_EQ(refused.status().code(), StatusCode::kFailure);
  EXPECT_EQ(TestFolder::Read(Out("s")), "mine");
  ASSERT_TRUE(Cut({0, 1}, Out("s"), Overwrite::kForce).ok());
  EXPECT_TRUE(Verify(Out("s")).ok());
  EXPECT_EQ(OutCount(), 1u);
}

TEST_F(ShardFileTest, NeverWritesOverAnInput) {
  const std::string before = TestFolder::Read(model_);
  std::filesystem::create_symlink(model_, Out("link.gguf"));
  std::filesystem::create_hard_link(model_, Out("hard.gguf"));
  for (const std::string& path : {model_, Out("link.gguf"), Out("hard.gguf"), folder_.path() + "/./out/../model.gguf"}) {
    const Result<WrittenShard> shard = Cut({0, 1}, path, Overwrite::kForce);
    ASSERT_FALSE(shard.ok()) << path;
    EXPECT_EQ(shard.status().code(), StatusCode::kRefused);
    EXPECT_NE(shard.status().message().find(path), std::string::npos);
  }
  EXPECT_EQ(TestFolder::Read(model_), before);
}

TEST_F(ShardFileTest, OutputNamesThatWouldMislead) {
  EXPECT_EQ(Cut({0, 1}, Out("s-00001-of-00002.gguf")).status().code(), StatusCode::kBadConfiguration);
  EXPECT_EQ(Cut({0, 1}, out_).status().code(), StatusCode::kBadConfiguration);
  EXPECT_EQ(Cut({0, 1}, out_ + "/").status().code(), StatusCode::kBadConfiguration);
  EXPECT_EQ(Cut({0, 1}, Out("absent/s.gguf")).status().code(), StatusCode::kFailure);
  EXPECT_EQ(OutCount(), 0u);
}

TEST_F(ShardFileTest, AManifestOfAnotherModelIsNotBelieved) {
  const Manifest other = manifest_;
  tiny::TinyModelOptions options;
  options.layers = 3;
  options.width = 128;
  MakeModel(options);
  manifest_ = other;
  EXPECT_EQ(Cut({0, 1}, Out("s")).status().code(), StatusCode::kBadModel);
}

// The same model, told in other words, has the same root; another tokenizer or weight has another.
TEST_F(ShardFileTest, RootIsOfTheModelNotOfTheFile) {
  tiny::TinyModelOptions options;
  options.layers = 3;
  const Sha256Digest root = manifest_.model_root;
  options.seed = 2;
  MakeModel(options);
  EXPECT_NE(manifest_.model_root, root);
  EXPECT_NE(manifest_.text.find("\nkey llama.block_count 3\n"), std::string::npos) << manifest_.text;
  EXPECT_NE(manifest_.text.find("\ntensor blk.0.attn_k.weight f32 64x32 "), std::string::npos);
}

// Converters write a number once or once per layer, as one integer type or another.
TEST_F(ShardFileTest, RootDoesNotDependOnHowANumberIsWritten) {
  const std::string bytes = TestFolder::Read(model_);
  const auto root_with = [&](const MetadataEntry& heads) {
    std::vector<MetadataEntry> metadata = file_->metadata();
    for (MetadataEntry& entry : metadata) {
      if (entry.key == heads.key) entry = heads;
    }
    std::vector<TensorLayout> layouts;
    for (const TensorInfo& tensor : file_->tensors()) layouts.push_back({tensor.name, tensor.type, tensor.dims, tensor.bytes});
    const EncodedHeader header = EncodeHeader(metadata, layouts);
    TestFolder::Write(Out("other.gguf"), header.bytes + bytes.substr(file_->tensors()[0].offset));
    const Result<ModelFile> other = ModelFile::Open(Out("other.gguf"));
    EXPECT_TRUE(other.ok()) << other.status().message();
    const ShardPlan plan = PlanShard(*other, ReadModelShape(*other).value(), {1, 3}).value();
    for (const MetadataEntry& entry : plan.metadata) {
      if (entry.key == heads.key && entry.type == ValueType::kArray) {
        EXPECT_EQ(entry.count, 2u);
      }
    }
    return BuildManifest(*other, nullptr)->model_root;
  };
  const std::string key = "llama.attention.head_count_kv";
  EXPECT_EQ(root_with(MetadataEntry::Uint32Array(key, {1, 1, 1})), manifest_.model_root);
  MetadataEntry wide = MetadataEntry::Uint32(key, 1);
  wide.type = wide.element_type = ValueType::kUint64;
  wide.raw.resize(8, '\0');
  EXPECT_EQ(root_with(wide), manifest_.model_root);
  EXPECT_NE(root_with(MetadataEntry::Uint32(key, 2)), manifest_.model_root);
}

TEST_F(ShardFileTest, RootCoversTheTokenizer) {
  tiny::TinyModelOptions options = tiny::TextModelOptions();
  options.layers = 3;
  MakeModel(options);
  const Sha256Digest root = manifest_.model_root;
  options.vocabulary_max = 2049;
  MakeModel(options);
  EXPECT_NE(manifest_.model_root, root);
  EXPECT_NE(manifest_.text.find("key tokenizer.chat_template sha256:"), std::string::npos);
}

TEST_F(ShardFileTest, ParallelCutsDoNotMix) {
  std::vector<std::thread> threads;
  std::vector<Status> statuses(4);
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([this, i, &statuses] { statuses[i] = Cut({0, 2}, Out("s"), Overwrite::kForce).status(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(Verify(Out("s")).ok());
  EXPECT_EQ(OutCount(), 1u);
}

TEST_F(ShardFileTest, FileSizeLimitIsRefusedBeforeAnythingIsWritten) {
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = Cut({0, 2}, Out("s")).status();
    const bool right = status.code() == StatusCode::kFailure && status.message().find("ulimit -f") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  EXPECT_EQ(OutCount(), 0u);
}

// A small disk of our own: needs root.
class SmallDiskTest : public ShardFileTest {
 protected:
  void SetUp() override {
    ShardFileTest::SetUp();
    if (geteuid() != 0 || mount("meshnet-test", out_.c_str(), "tmpfs", 0, "size=128k") != 0) GTEST_SKIP() << "mounting a tmpfs needs root";
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(out_.c_str(), MNT_DETACH);
  }
  bool mounted_ = false;
};

TEST_F(SmallDiskTest, ShortDiskIsRefusedFirstWithBothNumbers) {
  const Result<WrittenShard> shard = Cut({0, 3}, Out("s"));
  ASSERT_FALSE(shard.ok());
  EXPECT_EQ(shard.status().code(), StatusCode::kFailure);
  EXPECT_NE(shard.status().message().find("needs "), std::string::npos) << shard.status().message();
  EXPECT_NE(shard.status().message().find("only 131072 are free"), std::string::npos) << shard.status().message();
  EXPECT_EQ(OutCount(), 0u);
}

TEST_F(SmallDiskTest, DiskThatFillsUpOnTheWayLeavesNothing) {
  Result<OutputFile> file = OutputFile::Create(Out("s"), 0, 0, Readers::kAsUmask);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const std::string block(200000, 'x');
  const Status status = file->Write(0, block.data(), block.size());
  EXPECT_EQ(status.code(), StatusCode::kFailure);
  EXPECT_NE(status.message().find("nothing of it was kept"), std::string::npos) << status.message();
  { const OutputFile gone = std::move(file).value(); }
  EXPECT_EQ(OutCount(), 0u);
  struct stat info{};
  EXPECT_NE(stat(Out("s").c_str(), &info), 0);
}

// Within one file system the kernel copies, and it is the kernel that finds the disk full.
TEST_F(SmallDiskTest, ACopyThatFillsTheDiskLeavesNothing) {
  const std::string source = Out("source");
  TestFolder::Write(source, std::string(60000, 'x'));
  const int from = open(source.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(from, 0);
  {
    Result<OutputFile> file = OutputFile::Create(Out("s"), 0, 0, Readers::kAsUmask);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->CopyFrom(from, 0, 0, 50000).ok());
    const Status status = file->CopyFrom(from, 0, 50000, 60000);
    EXPECT_EQ(status.code(), StatusCode::kFailure);
    EXPECT_NE(status.message().find("No space left on device; nothing of it was kept"), std::string::npos) << status.message();
  }
  close(from);
  EXPECT_EQ(OutCount(), 1u);
}

// The same without a disk of our own: the kernel refuses to let the file grow.
TEST_F(ShardFileTest, ACopyThatMayNotGrowLeavesNothing) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit{65536, 65536};
    setrlimit(RLIMIT_FSIZE, &limit);
    const int from = open(model_.c_str(), O_RDONLY | O_CLOEXEC);
    Result<OutputFile> file = OutputFile::Create(Out("s"), 0, 0, Readers::kAsUmask);
    const Status status = file.ok() ? file->CopyFrom(from, 0, 0, 100000) : file.status();
    _exit(status.code() == StatusCode::kFailure && status.message().find("File too large; nothing of it was kept") != std::string::npos ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  EXPECT_EQ(OutCount(), 0u);
}

TEST_F(ShardFileTest, AKilledWriterLeavesNoFinalName) {
  const pid_t child = fork();
  if (child == 0) {
    Result<OutputFile> file = OutputFile::Create(Out("s"), 0, 0, Readers::kAsUmask);
    if (file.ok() && file->Write(0, "half", 4).ok()) kill(getpid(), SIGKILL);
    _exit(1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFSIGNALED(state));
  EXPECT_FALSE(std::filesystem::exists(Out("s")));
  EXPECT_TRUE(Cut({0, 1}, Out("s")).ok());
}

struct RealModel {
  const char* name;
  std::vector<uint32_t> cuts;
  double size_max;               // of all shards together, in models; a tied one has its embedding twice
};

void PrintTo(const RealModel& model, std::ostream* out) { *out << model.name; }

class RealModelTest : public testing::TestWithParam<RealModel> {};

TEST_P(RealModelTest, ShardsAreVerifiedAndTakeLittleMore) {
  const std::string name = GetParam().name;
  if (std::getenv("MESHNET_REAL_MODELS") == nullptr) GTEST_SKIP() << "needs MESHNET_REAL_MODELS=1 and the model: scripts/model " << name;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string folder = cache != nullptr ? cache : std::string(std::getenv("HOME")) + "/.cache";
  const std::string path = folder + "/meshnet/models/" + name + ".gguf";
  const Result<ModelFile> file = ModelFile::Open(path);
  if (!file.ok()) GTEST_SKIP() << "no model (" << file.status().message() << "): scripts/model " << name;
  const Result<ModelShape> shape = ReadModelShape(*file);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const Result<Manifest> manifest = BuildManifest(*file, nullptr);
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const Result<std::vector<LayerRange>> ranges = RangesOfCuts(*shape, GetParam().cuts);
  ASSERT_TRUE(ranges.ok()) << ranges.status().message();
  const TestFolder out;
  uint64_t bytes = 0;
  for (LayerRange range : *ranges) {
    const Result<ShardPlan> plan = PlanShard(*file, *shape, range);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Result<WrittenShard> shard = WriteShard(*file, *plan, *manifest, out.File(range.Text()), Overwrite::kRefuse, nullptr);
    ASSERT_TRUE(shard.ok()) << shard.status().message();
    bytes += shard->bytes;
    const Result<ModelFile> reopened = ModelFile::Open(shard->path);
    const Result<std::optional<ShardIdentity>> identity = ReadShardIdentity(*reopened);
    ASSERT_TRUE(identity.ok() && identity->has_value());
    const Status verified = VerifyShardIdentity(*reopened, **identity, nullptr);
    EXPECT_TRUE(verified.ok()) << verified.message();
  }
  EXPECT_LE(static_cast<double>(bytes), GetParam().size_max * static_cast<double>(file->parts()[0].bytes));
}

INSTANTIATE_TEST_SUITE_P(Models, RealModelTest,
                         testing::Values(RealModel{"smollm2-135m", {1, 29}, 1.4}, RealModel{"gemma3-270m", {7}, 1.8},
                                         RealModel{"qwen2.5-coder-1.5b", {14}, 1.05}),
                         [](const testing::TestParamInfo<RealModel>& model) {
                           std::string name = model.param.name;
                           std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace meshnet::gguf
