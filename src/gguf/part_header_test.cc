// Headers from strangers: each way to be wrong has its own sentence, with the place where it is.
#include "gguf/part_header.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <set>
#include <utility>

#include "gguf/ggml_types.h"
#include "gguf/gguf_writer.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::gguf {
namespace {

using tiny::TestFolder;

// Raw header bytes, right or wrong.
class Bytes {
 public:
  Bytes& U32(uint32_t value) { return Raw(&value, sizeof(value)); }
  Bytes& U64(uint64_t value) { return Raw(&value, sizeof(value)); }
  Bytes& Text(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  Bytes& String(const std::string& text) { return U64(text.size()).Text(text); }
  Bytes& Start(uint64_t tensors, uint64_t entries, uint32_t version = 3) { return Text("GGUF").U32(version).U64(tensors).U64(entries); }
  Bytes& Entry32(const std::string& key, uint32_t value) { return String(key).U32(4).U32(value); }
  Bytes& Tensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    String(name).U32(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) U64(dim);
    return U32(type).U64(offset);
  }
  // Pads to the data section and adds `bytes` of it.
  Bytes& Data(uint64_t bytes) {
    bytes_.resize(Aligned(bytes_.size(), 32) + bytes);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  Bytes& Raw(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string bytes_;
};

struct Hostile {
  const char* name;
  std::string bytes;
  std::vector<std::string> said;  // parts of the sentence
};

std::vector<Hostile> HostileHeaders() {
  const std::string pad(64, '\0');
  return {
      {"empty file", "", {"at offset 0", "ends (after 0 bytes)", "magic"}},
      {"other magic", Bytes().Text("PK\x03\x04").Text(pad).Take(), {"at offset 0", "PK\\x03\\x04"}},
      {"version 1", Bytes().Start(0, 0, 1).Text(pad).Take(), {"at offset 4", "version 1 ", "v0.5.0"}},
      {"version 99", Bytes().Start(0, 0, 99).Text(pad).Take(), {"at offset 4", "version 99 ", "v0.5.0"}},
      {"big-endian", Bytes().Start(0, 0, 0x03000000).Text(pad).Take(), {"at offset 4", "big-endian", "50331648"}},
      {"ends in counts", Bytes().Text("GGUF").U32(3).U32(0).Take(), {"at offset 8", "tensor count", "truncated"}},
      {"too many tensors", Bytes().Start(1ull << 60, 0).Take(), {"at offset 8", "1152921504606846976 tensors"}},
      {"too many entries", Bytes().Start(0, 1ull << 61).Take(), {"at offset 16", "2305843009213693952 metadata"}},
      {"long key", Bytes().Start(0, 1).U64(1ull << 40).Text(pad).Take(), {"at offset 24", "key of metadata entry 0", "1099511627776 bytes"}},
      {"key beyond limit", Bytes().Start(0, 1).String(std::string(70000, 'k')).Text(pad).Take(), {"at offset 24", "70000", "65535"}},
      {"empty key", Bytes().Start(0, 1).String("").U32(4).U32(1).Take(), {"at offset 24", "\"\" is empty"}},
      {"control character in key", Bytes().Start(0, 1).String(std::string("a\0b", 3)).U32(4).U32(1).Take(), {"at offset 24", "a\\x00b"}},
      {"key twice", Bytes().Start(0, 2).Entry32("a.b", 1).Entry32("a.b", 2).Take(), {"at offset 43", "\"a.b\" occurs twice"}},
      {"unknown value type", Bytes().Start(0, 1).String("a.b").U32(13).U64(0).Take(), {"at offset 35", "\"a.b\"", "unknown type 13"}},
      {"value cut off", Bytes().Start(0, 1).String("a.b").U32(10).U32(0).Take(), {"at offset 39", "\"a.b\"", "truncated"}},
      {"long string", Bytes().Start(0, 1).String("a.b").U32(8).U64(1ull << 62).Text(pad).Take(), {"at offset 39", "\"a.b\"", "are left"}},
      {"huge string", Bytes().Start(0, 1).String("a.b").U32(8).String(std::string(17 << 20, 'x')).Take(), {"at offset 39", "17825792", "accepted"}},
      {"nested array", Bytes().Start(0, 1).String("a.b").U32(9).U32(9).U64(1).U32(4).U64(0).Take(), {"at offset 39", "array of arrays"}},
      {"array of unknown", Bytes().Start(0, 1).String("a.b").U32(9).U32(77).U64(1).Text(pad).Take(), {"at offset 39", "unknown type 77"}},
      {"long array", Bytes().Start(0, 1).String("a.b").U32(9).U32(4).U64(1ull << 62).Text(pad).Take(), {"at offset 39", "4611686018427387904 elements"}},
      {"long string array", Bytes().Start(0, 1).String("a.b").U32(9).U32(8).U64(9).Text(pad).Take(), {"at offset 39", "9 elements"}},
      {"string in array cut off", Bytes().Start(0, 1).String("a.b").U32(9).U32(8).U64(2).String("x").U64(9).Take(), {"at offset 60", "claims 9 bytes"}},
      {"too many strings",
       Bytes().Start(0, 1).String("a.b").U32(9).U32(8).U64(kStringCountMax + 1).Text(std::string(8 * (kStringCountMax + 1), '\0')).Take(),
       {"at offset 39", "4194305"}},
      {"alignment 0", Bytes().Start(0, 1).Entry32("general.alignment", 0).Take(), {"general.alignment", "is 0", "power of two"}},
      {"alignment 48", Bytes().Start(0, 1).Entry32("general.alignment", 48).Take(), {"general.alignment", "is 48", "power of two"}},
      {"alignment is text", Bytes().Start(0, 1).String("general.alignment").U32(8).String("32").Take(), {"general.alignment", "32-bit"}},
      {"long tensor name", Bytes().Start(1, 0).String(std::string(64, 'n')).U32(1).U64(1).U32(0).U64(0).Take(), {"at offset 24", "64 bytes", "63"}},
      {"empty tensor name", Bytes().Start(1, 0).Tensor("", {1}, 0, 0).Text(pad).Take(), {"at offset 24", "tensor name \"\""}},
      {"tensor twice", Bytes().Start(2, 0).Tensor("t", {8}, 0, 0).Tensor("t", {8}, 0, 32).Data(64).Take(), {"at offset 57", "\"t\" occurs twice"}},
      {"no dimensions", Bytes().Start(1, 0).Tensor("t", {}, 0, 0).Text(pad).Take(), {"at offset 24", "\"t\" has 0 dimensions"}},
      {"five dimensions", Bytes().Start(1, 0).Tensor("t", {1, 1, 1, 1, 1}, 0, 0).Data(32).Take(), {"\"t\" has 5 dimensions"}},
      {"dimension 0", Bytes().Start(1, 0).Tensor("t", {8, 0}, 0, 0).Data(32).Take(), {"\"t\" has no elements", "dimension 1 is 0"}},
      {"unknown ggml type", Bytes().Start(1, 0).Tensor("blk.0.x", {8}, 43, 0).Data(32).Take(), {"unknown type 43 in tensor \"blk.0.x\"", "v0.5.0"}},
      {"removed ggml type", Bytes().Start(1, 0).Tensor("t", {8}, 4, 0).Data(32).Take(), {"unknown type 4 in tensor \"t\""}},
      {"partial block", Bytes().Start(1, 0).Tensor("t", {31}, kTypeQ8_0, 0).Data(64).Take(), {"\"t\" has rows of 31", "32 of a q8_0 block"}},
      {"size overflow", Bytes().Start(1, 0).Tensor("t", {1ull << 32, 1ull << 31}, 0, 0).Data(64).Take(), {"size of tensor \"t\" (4294967296 x", "63 bits"}},
      {"element overflow", Bytes().Start(1, 0).Tensor("t", {1ull << 40, 1ull << 23}, 41, 0).Data(64).Take(), {"size of tensor \"t\" (1099511627776 x", "q1_0"}},
      {"table cut off", Bytes().Start(1, 1).Entry32("a.b", 1).String("t").U32(2).U64(8).Text(pad.substr(0, 4)).Take(), {"inside tensor \"t\""}},
      {"misaligned tensor", Bytes().Start(1, 0).Tensor("t", {8}, 0, 8).Data(64).Take(), {"\"t\" starts at offset 8", "alignment 32"}},
      {"overlapping tensors", Bytes().Start(2, 0).Tensor("t", {64}, 0, 0).Tensor("u", {8}, 0, 32).Data(320).Take(),
       {"\"u\" starts at offset 32", "overlaps tensor \"t\""}},
      {"gap", Bytes().Start(2, 0).Tensor("t", {8}, 0, 0).Tensor("u", {8}, 0, 96).Data(320).Take(), {"\"u\" starts at offset 96", "gap"}},
      {"data cut off", Bytes().Start(1, 0).Tensor("t", {64}, 0, 0).Data(255).Take(), {"\"t\" ends 256 bytes behind offset 64", "at 319"}},
      {"no data at all", Bytes().Start(1, 0).Tensor("t", {64}, 0, 0).Take(), {"\"t\" ends 256 bytes behind offset 64", "at 57"}},
      {"offset near 2^64", Bytes().Start(1, 0).Tensor("t", {8}, 0, 0ull - 32).Data(64).Take(), {"\"t\" starts at offset 18446744073709551584", "gap"}},
  };
}

TEST(PartHeaderTest, EachHostileHeaderHasItsOwnSentence) {
  TestFolder folder;
  const std::string path = folder.File("hostile.gguf");
  std::set<std::string> sentences;
  for (const Hostile& hostile : HostileHeaders()) {
    SCOPED_TRACE(hostile.name);
    TestFolder::Write(path, hostile.bytes);
    const Result<PartHeader> header = ReadPartHeader(path);
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.status().code(), StatusCode::kBadModel);
    const std::string message = header.status().message();
    EXPECT_TRUE(message.starts_with(path + ": at offset ")) << message;
    for (const std::string& part : hostile.said) EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_TRUE(sentences.insert(message).second) << message;
  }
}

TEST(PartHeaderTest, RefusesWhatIsNoFile) {
  TestFolder folder;
  EXPECT_NE(ReadPartHeader(folder.File("absent.gguf")).status().message().find("cannot be opened"), std::string::npos);
  EXPECT_NE(ReadPartHeader(folder.path()).status().message().find("not a regular file"), std::string::npos);
}

TEST(PartHeaderTest, TruncationAnywhereIsAnErrorAndNeverAnAbort) {
  TestFolder folder;
  tiny::TinyModelOptions options;
  options.layers = 1;
  ASSERT_TRUE(tiny::WriteTinyModel(options, folder.File("whole.gguf")).ok());
  const std::string whole = TestFolder::Read(folder.File("whole.gguf"));
  const std::string path = folder.File("short.gguf");
  // Every length at first, then steps through the rest of the header and the data.
  for (size_t length = 0; length < whole.size(); length += length < 300 ? 1 : length < 3000 ? 37 : 9973) {
    TestFolder::Write(path, whole.substr(0, length));
    const Result<PartHeader> header = ReadPartHeader(path);
    ASSERT_FALSE(header.ok()) << length;
    EXPECT_EQ(header.status().code(), StatusCode::kBadModel);
  }
  EXPECT_TRUE(ReadPartHeader(folder.File("whole.gguf")).ok());
}

TEST(PartHeaderTest, ReadsBackWhatTheWriterWrote) {
  TestFolder folder;
  std::vector<MetadataEntry> metadata = {MetadataEntry::String("general.architecture", "x"), MetadataEntry::Uint32("x.n", 7),
                                         MetadataEntry::Float32("x.f", 0.25f), MetadataEntry::Bool("x.b", true),
                                         MetadataEntry::Uint32Array("x.a", {1, 2, 3}), MetadataEntry::BoolArray("x.p", {true, false})};
  const std::vector<TensorLayout> tensors = {{"t", kTypeF32, {3}, 12}, {"u", kTypeQ8_0, {32, 2}, 68}};
  const EncodedHeader header = EncodeHeader(metadata, tensors);
  std::string bytes = header.bytes;
  bytes.resize(header.file_bytes);
  TestFolder::Write(folder.File("x.gguf"), bytes);
  const Result<ModelFile> file = ModelFile::Open(folder.File("x.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->String("general.architecture", ""), "x");
  EXPECT_EQ(file->Integer("x.n"), 7);
  EXPECT_EQ(file->Find("x.f")->Real(), 0.25);
  EXPECT_EQ(file->Find("x.b")->Integer(), 1);
  EXPECT_EQ(file->Find("x.a")->Integer(2), 3);
  EXPECT_EQ(file->Find("x.a")->Integer(3), std::nullopt);
  EXPECT_EQ(file->Find("x.p")->Integer(1), 0);
  ASSERT_NE(file->FindTensor("u"), nullptr);
  EXPECT_EQ(file->FindTensor("u")->offset, header.offsets[1]);
  EXPECT_EQ(file->FindTensor("u")->bytes, 68u);
  EXPECT_EQ(file->FindTensor("v"), nullptr);
}

TEST(PartHeaderTest, MetadataNumbersKeepTheirRange) {
  MetadataEntry entry = MetadataEntry::Uint32("k", 0);
  entry.type = entry.element_type = ValueType::kUint64;
  const uint64_t large = 1ull << 63;
  entry.raw.assign(reinterpret_cast<const char*>(&large), 8);
  EXPECT_EQ(entry.Integer(), std::nullopt);
  entry.type = entry.element_type = ValueType::kInt8;
  entry.raw = "\xff";
  EXPECT_EQ(entry.Integer(), -1);
  EXPECT_EQ(entry.Real(), -1.0);
}

}  // namespace
}  // namespace meshnet::gguf
