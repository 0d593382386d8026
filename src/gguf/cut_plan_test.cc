// Cut plans are pure: a header in, tensors and keys out. Each certified architecture's rules are walked here.
#include "gguf/cut_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gguf/architecture_table.h"
#include "gguf/gguf_writer.h"
#include "gguf/shard_keys.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::gguf {
namespace {

using tiny::TestFolder;

class CutPlanTest : public testing::Test {
 protected:
  ModelFile Open(const tiny::TinyModelOptions& options) {
    const std::string path = folder_.File(options.architecture + ".gguf");
    EXPECT_TRUE(tiny::WriteTinyModel(options, path).ok());
    Result<ModelFile> file = ModelFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(file).value();
  }
  ModelFile Open(const std::string& architecture, uint32_t layers) {
    tiny::TinyModelOptions options;
    options.architecture = architecture;
    options.layers = layers;
    return Open(options);
  }
  // A header without data, for models that are too large or too odd to write.
  ModelFile OpenHeader(const std::vector<MetadataEntry>& metadata, const std::vector<TensorLayout>& tensors) {
    const EncodedHeader header = EncodeHeader(metadata, tensors);
    std::string bytes = header.bytes;
    bytes.resize(header.file_bytes);
    TestFolder::Write(folder_.File("header.gguf"), bytes);
    Result<ModelFile> file = ModelFile::Open(folder_.File("header.gguf"));
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(file).value();
  }
  // The smallest header that has `layers` layers, with keys on top.
  ModelFile Skeleton(const std::string& architecture, uint32_t layers, std::vector<MetadataEntry> keys, uint64_t vocabulary = 8) {
    std::vector<MetadataEntry> metadata = {MetadataEntry::String("general.architecture", architecture),
                                           MetadataEntry::Uint32(architecture + ".block_count", layers),
                                           MetadataEntry::Uint32(architecture + ".embedding_length", 64),
                                           MetadataEntry::Uint32(architecture + ".context_length", 64)};
    bool heads = false;
    for (MetadataEntry& key : keys) {
      heads = heads || key.key == architecture + ".attention.head_count";
      const auto same = std::find_if(metadata.begin(), metadata.end(), [&](const MetadataEntry& m) { return m.key == key.key; });
      if (same != metadata.end()) {
        *same = std::move(key);
      } else {
        metadata.push_back(std::move(key));
      }
    }
    if (!heads) metadata.push_back(MetadataEntry::Uint32(architecture + ".attention.head_count", 2));
    // q2_0: one block a row.
    std::vector<TensorLayout> tensors = {{"token_embd.weight", 42, {64, vocabulary}, 18 * vocabulary}, {"output_norm.weight", 0, {64}, 256}};
    for (uint32_t i = 0; i < layers; ++i) tensors.push_back({"blk." + std::to_string(i) + ".attn_norm.weight", 0, {64}, 256});
    return OpenHeader(metadata, tensors);
  }
  static ModelShape Shape(const ModelFile& file) {
    const Result<ModelShape> shape = ReadModelShape(file);
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    return shape.value();
  }
  static ShardPlan Plan(const ModelFile& file, LayerRange range) {
    const Result<ShardPlan> plan = PlanShard(file, Shape(file), range);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.value();
  }
  static std::string Refusal(const ModelFile& file, LayerRange range) {
    const Result<ShardPlan> plan = PlanShard(file, Shape(file), range);
    if (plan.ok()) return "it was planned";
    EXPECT_EQ(plan.status().code(), StatusCode::kRefused);
    return plan.status().message();
  }
  static const MetadataEntry* Find(const ShardPlan& plan, const std::string& key) {
    for (const MetadataEntry& entry : plan.metadata) {
      if (entry.key == key) return &entry;
    }
    return nullptr;
  }
  static int64_t Number(const ShardPlan& plan, const std::string& key) {
    const MetadataEntry* entry = Find(plan, key);
    return entry == nullptr ? -1 : entry->Integer().value_or(-2);
  }
  static const PlannedTensor* FindTensor(const ShardPlan& plan, const std::string& name) {
    for (const PlannedTensor& tensor : plan.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  TestFolder folder_;
};

// The shards of any cutting hold each tensor of the model once; ends and shared tensors where their readers are.
TEST_F(CutPlanTest, ShardsOfEveryArchitectureHoldTheWholeModel) {
  for (const std::string& architecture : tiny::TinyArchitectures()) {
    SCOPED_TRACE(architecture);
    const ModelFile file = Open(architecture, 7);
    const ModelShape shape = Shape(file);
    const LegalCuts legal = FindLegalCuts(file, shape);
    EXPECT_FALSE(legal.cuts.empty()) << legal.reason;
    const Result<std::vector<LayerRange>> ranges = RangesOfCuts(shape, {2, 4});
    ASSERT_TRUE(ranges.ok()) << ranges.status().message();
    std::map<std::string, int> stored;
    for (LayerRange range : *ranges) {
      const ShardPlan plan = Plan(file, range);
      std::set<std::string> names, keys;
      uint64_t bytes = 0;
      for (const PlannedTensor& tensor : plan.tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        bytes += Aligned(tensor.bytes, kDefaultAlignment);
        if (!tensor.hole) ++stored[tensor.original_name];
      }
      EXPECT_EQ(bytes, plan.bytes);
      for (const MetadataEntry& entry : plan.metadata) EXPECT_TRUE(keys.insert(entry.key).second) << entry.key;
      EXPECT_EQ(Number(plan, architecture + ".block_count"), range.size());
      EXPECT_EQ(Number(plan, kShardBeginKey), range.begin);
      EXPECT_EQ(Number(plan, kShardEndKey), range.end);
      EXPECT_EQ(Number(plan, kShardLayersKey), 7);
      EXPECT_EQ(Number(plan, kShardVocabularyKey), shape.vocabulary_size);
      EXPECT_GT(Number(plan, architecture + ".attention.key_length"), 0);
      EXPECT_GT(Number(plan, architecture + ".attention.value_length"), 0);
      EXPECT_GT(Number(plan, architecture + ".rope.dimension_count"), 0);
      // Local names count from 0.
      EXPECT_NE(FindTensor(plan, "blk.0.attn_norm.weight"), nullptr);
      EXPECT_EQ(FindTensor(plan, "blk." + std::to_string(range.size()) + ".attn_norm.weight"), nullptr);
    }
    for (const TensorInfo& tensor : file.tensors()) EXPECT_EQ(stored[tensor.name], 1) << tensor.name;
  }
}

TEST_F(CutPlanTest, UntiedEnds) {
  const ModelFile file = Open("llama", 6);
  const ShardPlan head = Plan(file, {0, 2}), middle = Plan(file, {2, 4}), tail = Plan(file, {4, 6});
  EXPECT_FALSE(FindTensor(head, "token_embd.weight")->hole);
  EXPECT_TRUE(FindTensor(head, "output.weight")->hole);
  EXPECT_EQ(FindTensor(head, "output.weight")->type, 42u);  // q2_0: the smallest with blocks of 64
  EXPECT_TRUE(FindTensor(head, "output_norm.weight")->hole);
  EXPECT_EQ(FindTensor(middle, "token_embd.weight")->dims, (std::vector<uint64_t>{64, 1}));
  EXPECT_EQ(FindTensor(middle, "output.weight")->dims, (std::vector<uint64_t>{64, 1}));
  EXPECT_EQ(Number(middle, "llama.vocab_size"), 1);
  EXPECT_EQ(Find(middle, "tokenizer.ggml.model")->strings[0], "no_vocab");
  // The tail is written as a tied model's: its output where the embedding would be, and no hole.
  EXPECT_EQ(FindTensor(tail, "token_embd.weight")->original_name, "output.weight");
  EXPECT_EQ(FindTensor(tail, "output.weight"), nullptr);
  EXPECT_EQ(tail.hole_bytes, 0u);
  EXPECT_NE(Find(tail, kShardOutputKey), nullptr);
  EXPECT_EQ(head.tensors.back().hole, true);
}

TEST_F(CutPlanTest, OutputThatStockCodeDemandsStaysUnderItsName) {
  const ShardPlan tail = Plan(Open("gpt-oss", 6), {4, 6});
  EXPECT_FALSE(FindTensor(tail, "output.weight")->hole);
  EXPECT_TRUE(FindTensor(tail, "token_embd.weight")->hole);
}

TEST_F(CutPlanTest, TiedEndsBothHoldTheEmbedding) {
  tiny::TinyModelOptions options;
  options.layers = 6;
  options.tied = true;
  const ModelFile file = Open(options);
  EXPECT_TRUE(Shape(file).tied);
  EXPECT_FALSE(FindTensor(Plan(file, {0, 3}), "token_embd.weight")->hole);
  EXPECT_FALSE(FindTensor(Plan(file, {3, 6}), "token_embd.weight")->hole);
  EXPECT_TRUE(FindTensor(Plan(file, {1, 3}), "token_embd.weight")->hole);
  EXPECT_EQ(FindTensor(Plan(file, {0, 3}), "output.weight"), nullptr);
}

TEST_F(CutPlanTest, TokenizerStaysAtBothEnds) {
  tiny::TinyModelOptions options = tiny::TextModelOptions();
  options.layers = 6;
  const ModelFile file = Open(options);
  for (LayerRange range : {LayerRange{0, 2}, LayerRange{4, 6}}) {
    const ShardPlan plan = Plan(file, range);
    ASSERT_NE(Find(plan, "tokenizer.ggml.tokens"), nullptr);
    EXPECT_EQ(Find(plan, "tokenizer.ggml.tokens")->count, 2048u);
    EXPECT_EQ(Number(plan, "llama.vocab_size"), 2048);
  }
  const ShardPlan middle = Plan(file, {2, 4});
  EXPECT_EQ(Find(middle, "tokenizer.ggml.tokens"), nullptr);
  EXPECT_EQ(Find(middle, "tokenizer.chat_template"), nullptr);
}

TEST_F(CutPlanTest, WindowPatternIsWrittenAsAnArray) {
  const ModelFile file = Open("gemma3", 14);  // full layers: 5, 11
  const ShardPlan plan = Plan(file, {3, 9});
  const MetadataEntry* pattern = Find(plan, "gemma3.attention.sliding_window_pattern");
  ASSERT_NE(pattern, nullptr);
  ASSERT_EQ(pattern->count, 6u);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(pattern->Integer(i), i == 2 ? 0 : 1) << i;
  // A range of full layers only: the window is switched off.
  const ShardPlan full = Plan(file, {5, 6});
  EXPECT_EQ(Number(full, "gemma3.attention.sliding_window"), 0);
  EXPECT_EQ(Find(full, "gemma3.attention.sliding_window_pattern"), nullptr);
}

TEST_F(CutPlanTest, WindowPatternOfTheSourceWins) {
  const std::string key = "gemma3.attention.sliding_window_pattern";
  const MetadataEntry window = MetadataEntry::Uint32("gemma3.attention.sliding_window", 8);
  const ModelFile array = Skeleton("gemma3", 4, {window, MetadataEntry::BoolArray(key, {false, true, true, false})});
  EXPECT_EQ(Find(Plan(array, {1, 4}), key)->raw, std::string("\1\1\0", 3));
  const ModelFile period = Skeleton("gemma3", 4, {window, MetadataEntry::Uint32(key, 2)});
  EXPECT_EQ(Find(Plan(period, {1, 4}), key)->raw, std::string("\0\1\0", 3));
  EXPECT_EQ(Shape(period).truncation_class, TruncationClass::kWindow);
}

TEST_F(CutPlanTest, WindowModelRefusesRangesThatStockCodeAbortsOn) {
  const ModelFile file = Open("gpt-oss", 6);  // odd layers are full ones
  EXPECT_NE(Refusal(file, {3, 4}).find("no sliding-window layer"), std::string::npos);
  EXPECT_EQ(RangesOfCuts(Shape(file), {3, 4}).status().code(), StatusCode::kRefused);
  EXPECT_TRUE(RangesOfCuts(Shape(file), {3}).ok());
}

TEST_F(CutPlanTest, LeadingDenseLayersAreCountedOff) {
  const ModelFile file = Skeleton("deepseek2", 8, {MetadataEntry::Uint32("deepseek2.leading_dense_block_count", 3)});
  const std::string key = "deepseek2.leading_dense_block_count";
  EXPECT_EQ(Number(Plan(file, {0, 2}), key), 2);
  EXPECT_EQ(Number(Plan(file, {0, 5}), key), 3);
  EXPECT_EQ(Number(Plan(file, {2, 5}), key), 1);
  EXPECT_EQ(Number(Plan(file, {5, 8}), key), 0);
}

TEST_F(CutPlanTest, PredictionLayersAreDropped) {
  const ModelFile file = Skeleton("deepseek2", 6, {MetadataEntry::Uint32("deepseek2.nextn_predict_layers", 1)});
  const ModelShape shape = Shape(file);
  EXPECT_EQ(shape.layer_count, 5u);
  EXPECT_EQ(shape.prediction_layers, 1u);
  EXPECT_EQ(FindLegalCuts(file, shape).cuts.back(), 4u);
  const ShardPlan tail = Plan(file, {3, 5});
  EXPECT_EQ(Number(tail, "deepseek2.nextn_predict_layers"), 0);
  for (const PlannedTensor& tensor : tail.tensors) EXPECT_FALSE(tensor.original_name.starts_with("blk.5.")) << tensor.original_name;
  EXPECT_EQ(PlanShard(file, shape, {3, 6}).status().code(), StatusCode::kBadConfiguration);
}

TEST_F(CutPlanTest, LiteDeepseekStaysLiteAndFullSizeNeverBecomesIt) {
  const ModelFile lite = Skeleton("deepseek2", 27, {});
  EXPECT_EQ(Number(Plan(lite, {0, 10}), "deepseek2.attention.q_lora_rank"), 0);
  EXPECT_EQ(Number(Plan(lite, {0, 10}), "deepseek2.expert_gating_func"), 1);
  const ModelFile full = Skeleton("deepseek2", 61, {MetadataEntry::Uint32("deepseek2.attention.q_lora_rank", 1536),
                                                    MetadataEntry::Uint32("deepseek2.expert_gating_func", 2)});
  EXPECT_EQ(Number(Plan(full, {0, 30}), "deepseek2.attention.q_lora_rank"), 1536);
  EXPECT_EQ(Number(Plan(full, {0, 30}), "deepseek2.expert_gating_func"), 2);
  for (uint32_t length : {26u, 27u}) EXPECT_NE(Refusal(full, {0, length}).find("lite"), std::string::npos) << length;
  EXPECT_EQ(RangesOfCuts(Shape(full), {27}).status().code(), StatusCode::kRefused);
  EXPECT_TRUE(RangesOfCuts(Shape(full), {28}).ok());
}

TEST_F(CutPlanTest, PerLayerArraysAreSlicedAndOthersAreNot) {
  const ModelFile file = Skeleton("llama", 4, {MetadataEntry::Uint32Array("llama.attention.head_count", {2, 2, 2, 2}),
                                               MetadataEntry::Uint32Array("llama.rope.dimension_sections", {1, 2, 3, 4})});
  const ShardPlan plan = Plan(file, {1, 3});
  EXPECT_EQ(Find(plan, "llama.attention.head_count")->count, 2u);
  EXPECT_EQ(Find(plan, "llama.rope.dimension_sections")->count, 4u);
}

TEST_F(CutPlanTest, UnknownPartsAreRefusedByName) {
  const ModelFile array = Skeleton("llama", 2, {MetadataEntry::Uint32Array("llama.new_thing", {1, 2})});
  EXPECT_NE(Refusal(array, {0, 1}).find("\"llama.new_thing\""), std::string::npos);
  EXPECT_TRUE(FindLegalCuts(array, Shape(array)).cuts.empty());
  const ModelFile uneven = Skeleton("llama", 2, {MetadataEntry::Uint32Array("llama.attention.head_count", {2, 4})});
  EXPECT_NE(Refusal(uneven, {0, 1}).find("its layers differ in \"llama.attention.head_count\""), std::string::npos);
}

TEST_F(CutPlanTest, ArchitecturesThatAreNotCertifiedAreRefusedByName) {
  for (const char* name : {"gemma4", "rwkv7", "never-heard-of"}) {
    const ModelFile file = Skeleton(name, 4, {});
    const std::string refusal = Refusal(file, {0, 2});
    EXPECT_NE(refusal.find(name), std::string::npos) << refusal;
    EXPECT_TRUE(FindLegalCuts(file, Shape(file)).cuts.empty());
    EXPECT_NE(FindLegalCuts(file, Shape(file)).reason.find(name), std::string::npos);
  }
  EXPECT_NE(RefusalReason("gemma4"), RefusalReason("never-heard-of"));
}

// Every row: each range between legal cuts plans or is refused with a reason, and a cut that is not legal is refused by number.
TEST_F(CutPlanTest, EveryCertifiedArchitectureIsWalked) {
  std::set<std::string_view> names;
  for (const ArchitectureRule& rule : CertifiedArchitectures()) {
    SCOPED_TRACE(std::string(rule.name));
    EXPECT_TRUE(names.insert(rule.name).second);
    const std::string name(rule.name);
    std::vector<MetadataEntry> keys;
    if (rule.window != WindowRule::kNone) keys.push_back(MetadataEntry::Uint32(name + ".attention.sliding_window", 16));
    const ModelFile file = Skeleton(name, 8, keys);
    const ModelShape shape = Shape(file);
    const LegalCuts legal = FindLegalCuts(file, shape);
    // The last layer alone has no window, so the cut in front of it is no border of anything.
    const bool stranded = rule.window != WindowRule::kNone && rule.windowless == WindowlessRange::kRefuse;
    EXPECT_EQ(legal.cuts.size(), 8 / rule.cut_step - (8 % rule.cut_step == 0 ? 1 : 0) - (stranded ? 1 : 0));
    EXPECT_EQ(legal.reason.empty(), rule.cut_step == 1 && !stranded);
    for (uint32_t cut : legal.cuts) {
      EXPECT_TRUE(RangesOfCuts(shape, {cut}).ok()) << cut;
    }
    for (uint32_t begin = 0; begin < 8; ++begin) {
      for (uint32_t end = begin + 1; end <= 8; ++end) {
        const Result<ShardPlan> plan = PlanShard(file, shape, {begin, end});
        const bool on_step = begin % rule.cut_step == 0 && (end == 8 || end % rule.cut_step == 0);
        if (!on_step) {
          EXPECT_EQ(plan.status().code(), StatusCode::kRefused);
        } else if (!plan.ok()) {
          EXPECT_NE(plan.status().message().find("no sliding-window layer"), std::string::npos) << plan.status().message();
          EXPECT_EQ(rule.windowless, WindowlessRange::kRefuse);
        } else {
          EXPECT_EQ(Find(*plan, name + ".embedding_scale") != nullptr, rule.scales_embedding && begin != 0);
        }
      }
    }
  }
}

TEST_F(CutPlanTest, ScalesOfTheWholeModelAreWrittenDown) {
  const ModelFile file = Skeleton("minicpm", 4, {});
  EXPECT_FLOAT_EQ(static_cast<float>(Find(Plan(file, {0, 2}), "minicpm.residual_scale")->Real().value()), 0.7f);
  EXPECT_EQ(Find(Plan(file, {2, 4}), "minicpm.embedding_scale")->Real(), 1.0);
  const ModelFile granite = Skeleton("granite", 4, {MetadataEntry::Float32("granite.embedding_scale", 12.0f)});
  EXPECT_EQ(Find(Plan(granite, {0, 2}), "granite.embedding_scale")->Real(), 12.0);
  EXPECT_EQ(Find(Plan(granite, {2, 4}), "granite.embedding_scale")->Real(), 1.0);
}

TEST_F(CutPlanTest, ImageFeaturesInLayersAreRefused) {
  const auto mapping = [](std::vector<uint32_t> values) {
    MetadataEntry entry = MetadataEntry::Uint32Array("granite.deepstack_mapping", values);
    entry.element_type = ValueType::kInt32;
    return entry;
  };
  EXPECT_EQ(Refusal(Skeleton("granite", 2, {mapping(std::vector<uint32_t>(512, UINT32_MAX))}), {0, 1}), "it was planned");
  EXPECT_NE(Refusal(Skeleton("granite", 2, {mapping({UINT32_MAX, 0})}), {0, 1}).find("deepstack_mapping"), std::string::npos);
}

TEST_F(CutPlanTest, LayerCountsThatChangeTheModelAreRefused) {
  EXPECT_NE(Refusal(Skeleton("command-r", 64, {}), {0, 32}).find("64 layers"), std::string::npos);
  EXPECT_EQ(Refusal(Skeleton("command-r", 63, {}), {0, 32}), "it was planned");
  const ModelFile file = Skeleton("gemma3", 62, {});
  EXPECT_NE(Refusal(file, {0, 31}).find("62 layers"), std::string::npos);
  const ModelFile longer = Skeleton("gemma3", 64, {});
  EXPECT_NE(Refusal(longer, {0, 62}).find("62 layers"), std::string::npos);
  EXPECT_EQ(Refusal(longer, {0, 61}), "it was planned");
}

TEST_F(CutPlanTest, CutsThatAreMistakes) {
  const ModelShape shape = Shape(Open("llama", 6));
  for (const std::vector<uint32_t>& cuts : std::vector<std::vector<uint32_t>>{{0}, {6}, {7}, {3, 2}, {2, 2}}) {
    EXPECT_EQ(RangesOfCuts(shape, cuts).status().code(), StatusCode::kBadConfiguration);
  }
  EXPECT_EQ(RangesOfCuts(shape, {})->size(), 1u);
  EXPECT_EQ((*RangesOfCuts(shape, {1, 5}))[1], (LayerRange{1, 5}));
}

TEST_F(CutPlanTest, PlansAreTheSameEachTime) {
  const ModelFile file = Open("deepseek2", 5);
  const ShardPlan one = Plan(file, {1, 3}), two = Plan(file, {1, 3});
  ASSERT_EQ(one.metadata.size(), two.metadata.size());
  std::vector<TensorLayout> tensors;
  for (const PlannedTensor& tensor : one.tensors) tensors.push_back({tensor.name, tensor.type, tensor.dims, tensor.bytes});
  EXPECT_EQ(EncodeHeader(one.metadata, tensors).bytes, EncodeHeader(two.metadata, tensors).bytes);
}

struct BadShape {
  const char* name;
  std::vector<MetadataEntry> keys;
  const char* said;
};

TEST_F(CutPlanTest, ShapesThatMakeNoSense) {
  const std::vector<BadShape> rows = {
      {"no layers", {MetadataEntry::Uint32("llama.block_count", 0)}, "\"llama.block_count\" is 0"},
      {"too many layers", {MetadataEntry::Uint32("llama.block_count", 513)}, "\"llama.block_count\" is 513"},
      {"text", {MetadataEntry::String("llama.block_count", "4")}, "\"llama.block_count\" is no whole number"},
      {"more prediction than layers", {MetadataEntry::Uint32("llama.nextn_predict_layers", 4)}, "\"llama.nextn_predict_layers\" is 4"},
      {"layer missing", {MetadataEntry::Uint32("llama.block_count", 5)}, "no tensor of layer 4"},
      {"layer beyond", {MetadataEntry::Uint32("llama.block_count", 3)}, "\"blk.3.attn_norm.weight\" is of a layer beyond"},
      {"short array", {MetadataEntry::Uint32Array("llama.attention.head_count", {2, 2})}, "has 2 elements for 4 layers"},
      {"other width", {MetadataEntry::Uint32("llama.embedding_length", 96)}, "is 64 wide"},
      {"no context", {MetadataEntry::Uint32("llama.context_length", 0)}, "\"llama.context_length\" is 0"},
  };
  for (const BadShape& row : rows) {
    SCOPED_TRACE(row.name);
    const Result<ModelShape> shape = ReadModelShape(Skeleton("llama", 4, row.keys));
    ASSERT_FALSE(shape.ok());
    EXPECT_EQ(shape.status().code(), StatusCode::kBadModel);
    EXPECT_NE(shape.status().message().find(row.said), std::string::npos) << shape.status().message();
  }
}

}  // namespace
}  // namespace meshnet::gguf
