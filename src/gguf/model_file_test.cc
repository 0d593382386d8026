// Split sets: which parts belong together, and what a wrong one is called.
#include "gguf/model_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "gguf/gguf_writer.h"
#include "gguf/model_shape.h"
#include "gguf/shard_file.h"
#include "gguf/split_name.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::gguf {
namespace {

using tiny::TestFolder;

enum class FirstPart { kHoldsTensors, kMetadataOnly };

MetadataEntry Number16(const std::string& key, uint16_t value) {
  MetadataEntry entry;
  entry.key = key;
  entry.type = entry.element_type = ValueType::kUint16;
  entry.raw.assign(reinterpret_cast<const char*>(&value), 2);
  return entry;
}

// Writes PREFIX-0000i-of-0000n.gguf as llama-gguf-split does.
void SplitModel(const std::string& model, const std::string& prefix, uint32_t count, FirstPart first) {
  const Result<ModelFile> file = ModelFile::Open(model);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const std::string bytes = TestFolder::Read(model);
  const uint32_t holders = first == FirstPart::kMetadataOnly ? count - 1 : count;
  const size_t per_part = (file->tensors().size() + holders - 1) / holders;
  size_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<MetadataEntry> metadata;
    if (i == 0) metadata = file->metadata();
    metadata.push_back(Number16("split.no", static_cast<uint16_t>(i)));
    metadata.push_back(Number16("split.count", static_cast<uint16_t>(count)));
    metadata.push_back(MetadataEntry::Uint32("split.tensors.count", static_cast<uint32_t>(file->tensors().size())));
    std::vector<TensorLayout> layouts;
    std::vector<std::string> data;
    const size_t end = i == 0 && first == FirstPart::kMetadataOnly ? 0 : std::min(next + per_part, file->tensors().size());
    for (; next < end; ++next) {
      const TensorInfo& tensor = file->tensors()[next];
      layouts.push_back({tensor.name, tensor.type, tensor.dims, tensor.bytes});
      data.push_back(bytes.substr(tensor.offset, tensor.bytes));
    }
    const EncodedHeader header = EncodeHeader(metadata, layouts);
    std::string part = header.bytes;
    for (size_t t = 0; t < data.size(); ++t) {
      part.resize(header.offsets[t]);
      part += data[t];
    }
    part.resize(header.file_bytes);
    TestFolder::Write(FormatSplitName(prefix, i + 1, count), part);
  }
}

class SplitSetTest : public testing::TestWithParam<FirstPart> {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", folder_.File("cache").c_str(), 1);
    options_.layers = 3;
    ASSERT_TRUE(tiny::WriteTinyModel(options_, Whole()).ok());
    SplitModel(Whole(), folder_.File("m"), 3, GetParam());
  }
  std::string Whole() const { return folder_.File("whole.gguf"); }
  std::string PartPath(uint32_t number) const { return FormatSplitName(folder_.File("m"), number, 3); }
  // The refusal of opening `path`, which must name `file`.
  std::string Refusal(const std::string& path, const std::string& file) const {
    const Result<ModelFile> opened = ModelFile::Open(path);
    if (opened.ok()) return "it was opened";
    EXPECT_EQ(opened.status().code(), StatusCode::kBadModel);
    EXPECT_NE(opened.status().message().find(file), std::string::npos) << opened.status().message();
    return opened.status().message();
  }
  static Sha256Digest Root(const std::string& path) {
    const Result<ModelFile> file = ModelFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    const Result<Manifest> manifest = BuildManifest(*file, nullptr);
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return manifest->model_root;
  }

  TestFolder folder_;
  tiny::TinyModelOptions options_;
};

TEST_P(SplitSetTest, AnyPartNamesTheSameModelAsTheWholeFile) {
  const Sha256Digest root = Root(Whole());
  for (uint32_t number : {1u, 2u, 3u}) EXPECT_EQ(Root(PartPath(number)), root) << number;
  const Result<ModelFile> file = ModelFile::Open(PartPath(2));
  EXPECT_EQ(file->parts().size(), 3u);
  EXPECT_EQ(file->path(), PartPath(2));
  EXPECT_EQ(file->Find("split.count"), nullptr);
  EXPECT_EQ(ReadModelShape(*file)->layer_count, 3u);
}

TEST_P(SplitSetTest, MissingPartIsNamed) {
  std::filesystem::remove(PartPath(3));
  EXPECT_NE(Refusal(PartPath(1), PartPath(3)).find("part 3 of 3 is missing"), std::string::npos);
}

TEST_P(SplitSetTest, RenamedPartIsNamed) {
  std::filesystem::rename(PartPath(2), folder_.File("other.gguf"));
  EXPECT_NE(Refusal(folder_.File("other.gguf"), "other.gguf").find("does not end in -00002-of-00003.gguf"), std::string::npos);
}

TEST_P(SplitSetTest, SwappedNamesAreNamed) {
  std::filesystem::rename(PartPath(2), folder_.File("tmp"));
  std::filesystem::rename(PartPath(3), PartPath(2));
  std::filesystem::rename(folder_.File("tmp"), PartPath(3));
  EXPECT_NE(Refusal(PartPath(1), PartPath(2)).find("says that it is part 3 of 3"), std::string::npos);
  EXPECT_NE(Refusal(PartPath(3), PartPath(3)).find("the part was renamed"), std::string::npos);
}

TEST_P(SplitSetTest, JoinedWithCatIsSaid) {
  const std::string joined = TestFolder::Read(PartPath(1)) + TestFolder::Read(PartPath(2)) + TestFolder::Read(PartPath(3));
  TestFolder::Write(folder_.File("joined.gguf"), joined);
  EXPECT_NE(Refusal(folder_.File("joined.gguf"), "joined.gguf").find("joined with cat"), std::string::npos);
  TestFolder::Write(PartPath(1), joined);
  EXPECT_NE(Refusal(PartPath(1), PartPath(1)).find("joined with cat"), std::string::npos);
}

TEST_P(SplitSetTest, PartOfAnotherModelIsNamed) {
  options_.layers = 4;
  ASSERT_TRUE(tiny::WriteTinyModel(options_, folder_.File("foreign.gguf")).ok());
  SplitModel(folder_.File("foreign.gguf"), folder_.File("foreign"), 3, GetParam());
  std::filesystem::copy_file(FormatSplitName(folder_.File("foreign"), 2, 3), PartPath(2), std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(Refusal(PartPath(1), PartPath(2)).find("part of another model"), std::string::npos);
}

TEST_P(SplitSetTest, PartOfAnotherWidthIsNamed) {
  options_.width = 128;
  ASSERT_TRUE(tiny::WriteTinyModel(options_, folder_.File("wide.gguf")).ok());
  SplitModel(folder_.File("wide.gguf"), folder_.File("wide"), 3, GetParam());
  std::filesystem::copy_file(FormatSplitName(folder_.File("wide"), 2, 3), PartPath(2), std::filesystem::copy_options::overwrite_existing);
  const Result<ModelFile> file = ModelFile::Open(PartPath(1));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<ModelShape> shape = ReadModelShape(*file);
  ASSERT_FALSE(shape.ok());
  EXPECT_NE(shape.status().message().find(PartPath(2)), std::string::npos) << shape.status().message();
  EXPECT_NE(shape.status().message().find("128 wide"), std::string::npos) << shape.status().message();
}

// Hubs keep files under their digest and make a link farm with the names: the siblings are those of the typed name.
TEST_P(SplitSetTest, LinksIntoABlobStoreAreUsable) {
  std::filesystem::create_directories(folder_.File("blobs"));
  const std::string snapshot = folder_.File("snapshots/ü 漢");
  std::filesystem::create_directories(snapshot);
  for (uint32_t number = 1; number <= 3; ++number) {
    const std::string blob = folder_.File("blobs/" + std::to_string(1000 + number));
    std::filesystem::rename(PartPath(number), blob);
    std::filesystem::create_symlink("../../blobs/" + std::to_string(1000 + number), FormatSplitName(snapshot + "/m", number, 3));
  }
  const std::string typed = FormatSplitName(snapshot + "/m", 3, 3);
  EXPECT_EQ(Root(typed), Root(Whole()));
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const Result<ModelFile> relative = ModelFile::Open("snapshots/ü 漢/m-00001-of-00003.gguf");
  std::filesystem::current_path(before);
  ASSERT_TRUE(relative.ok()) << relative.status().message();
  EXPECT_EQ(relative->parts()[1].path, "snapshots/ü 漢/m-00002-of-00003.gguf");
}

INSTANTIATE_TEST_SUITE_P(FirstPart, SplitSetTest, testing::Values(FirstPart::kHoldsTensors, FirstPart::kMetadataOnly),
                         [](const auto& first) { return first.param == FirstPart::kHoldsTensors ? "HoldsTensors" : "MetadataOnly"; });

TEST(ModelFileTest, ATensorInTwoPartsIsNamed) {
  TestFolder folder;
  for (uint16_t i = 0; i < 2; ++i) {
    const std::vector<MetadataEntry> metadata = {Number16("split.no", i), Number16("split.count", 2),
                                                 MetadataEntry::Uint32("split.tensors.count", 2)};
    const EncodedHeader header = EncodeHeader(metadata, std::vector<TensorLayout>{{"t", 0, {8}, 32}});
    TestFolder::Write(FormatSplitName(folder.File("m"), i + 1u, 2), header.bytes + std::string(32, 'x'));
  }
  const std::string second = FormatSplitName(folder.File("m"), 2, 2);
  const Status status = ModelFile::Open(FormatSplitName(folder.File("m"), 1, 2)).status();
  EXPECT_EQ(status.code(), StatusCode::kBadModel);
  EXPECT_TRUE(status.message().starts_with(second + ": tensor \"t\"")) << status.message();
}

TEST(SplitNameTest, ParsesOnlyWholeNames) {
  const std::optional<SplitName> name = ParseSplitName("/a b/m-00002-of-00010.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "/a b/m");
  EXPECT_EQ(name->number, 2u);
  EXPECT_EQ(name->count, 10u);
  for (const char* other : {"m.gguf", "m-2-of-10.gguf", "m-00002-of-00010.bin", "m-0000x-of-00010.gguf", "-00002-of-00010.gguf"}) {
    EXPECT_FALSE(ParseSplitName(other).has_value()) << other;
  }
}

TEST(ModelFileTest, LargeVocabulariesParseFast) {
  TestFolder folder;
  tiny::TinyModelOptions options;
  options.layers = 1;
  options.vocabulary_file = tiny::VocabularyFile("gemma-4");
  ASSERT_TRUE(tiny::WriteTinyModel(options, folder.File("big.gguf")).ok());
  const Result<ModelFile> file = ModelFile::Open(folder.File("big.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_GE(file->Find("tokenizer.ggml.tokens")->count, 262144u);
}

}  // namespace
}  // namespace meshnet::gguf
