// A request that the gateway takes and the last worker refuses costs a whole prefill and breaks a stream that has begun. So both ends are asked
// here about the same requests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/llama/llama_handles.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/llama_sampler.h"
#include "protocol/sampling_limits.h"
#include "text/llama/text_bed.h"
#include "tiny/test_folder.h"
#include "wire/convert.h"
#include "wire/validate_sampling.h"

namespace meshnet {
namespace {

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";

std::string Repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

class VerdictTest : public testing::Test {
 protected:
  VerdictTest() {
    UseLlamaLibrary();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    tail_.reset(llama_model_load_from_file(MESHNET_LLAMA_CPP_DIR "/models/ggml-vocab-qwen2.gguf", params));
  }

  static const TextModel& gateway() { return text::Model("qwen2", text::kStrictToolTemplate); }
  static std::variant<std::unique_ptr<ParsedRequest>, ApiError> Ask(const std::string& fields) {
    return gateway().Parse(ApiKind::kChat, "{" + kHi + "," + fields + "}", 4096);
  }

  // Why the last worker refuses, over the wire and then in the engine; empty: it takes them.
  std::string TailRefusal(const SamplingParams& params) const {
    auto read = ValidateSampling(ToProto(params), gateway().vocabulary_size());
    if (auto* refusal = std::get_if<Refusal>(&read)) return refusal->message;
    return TailSampler::Create({tail_.get(), 4096}, std::get<SamplingParams>(read)).status().message();
  }

  // Nothing may pass the gateway and fail at the tail.
  void ExpectTailTakesWhatPasses(const std::string& fields, bool passes) const {
    SCOPED_TRACE(fields.substr(0, 200));
    auto parsed = Ask(fields);
    const auto* request = std::get_if<std::unique_ptr<ParsedRequest>>(&parsed);
    EXPECT_EQ(request != nullptr, passes) << (request ? "" : std::get<ApiError>(parsed).message);
    if (request) {
      EXPECT_EQ(TailRefusal((*request)->choices[0].sampling), "");
    }
  }

  LlamaModelPtr tail_;
};

TEST_F(VerdictTest, OneGrammarOneVerdict) {
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | r" + std::to_string(i + 1) + "\n";
  const struct {
    const char* name;
    std::string grammar;
    bool taken;
  } rows[] = {
      {"literal", "root ::= \"yes\" | \"no\"", true},
      {"marker of the vocabulary", "root ::= <|im_start|> [^<]*", true},
      {"repetition of what may be nothing", "root ::= (a? b)+\na ::= \"x\"\nb ::= | \" \"", true},
      {"two thousand times", "root ::= [a-z]{0,2000}", true},
      {"not a marker", "root ::= <no such token>", false},
      {"long marker", "root ::= <" + Repeated("a", 30000) + ">", false},
      {"token out of range", "root ::= <[100000000]>", false},
      {"falling repetition", "root ::= \"a\"{5,3}", false},
      {"bound that llama.cpp drops", "root ::= \"a\"{0,2001}", false},
      {"empty class", "root ::= []", false},
      {"left recursion", "root ::= root \"a\" | \"b\"", false},
      {"a rule that never begins", "root ::= b root\nb ::= y\ny ::= \"\"", false},
      {"sixty thousand parentheses", "root ::= " + std::string(60000, '('), false},
      {"more rules than are taken", "root ::= " + Repeated("\"a\"{0,2000} ", 9), false},
      {"doubling search", chain + "r40 ::= \"x\"", false},
      {"doubling readings", "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\"", false},
      {"long rule name", Repeated("n", 600) + " ::= \"a\"\nroot ::= \"a\"", false},
      {"llguidance", "%llguidance {}", false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    ExpectTailTakesWhatPasses("\"grammar\":" + nlohmann::json(row.grammar).dump(), row.taken);
    SamplingParams params;
    params.grammar = row.grammar;
    EXPECT_EQ(TailRefusal(params).empty(), row.taken) << TailRefusal(params);
  }
}

TEST_F(VerdictTest, OneSchemaOneVerdict) {
  std::string strings;
  for (int i = 0; i < 9; ++i) strings += (i > 0 ? "," : "") + std::string("\"s") + std::to_string(i) + R"(":{"type":"string","maxLength":2000})";
  ExpectTailTakesWhatPasses(R"("json_schema":{"type":"object","properties":{)" + strings + "}}", false);
  ExpectTailTakesWhatPasses(R"("json_schema":{"type":"object","properties":{"a":{"type":"string","maxLength":2000}},"required":["a"]})", true);
  ExpectTailTakesWhatPasses(R"("response_format":{"type":"json_object"})", true);
  ExpectTailTakesWhatPasses(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}])", true);
}

TEST_F(VerdictTest, NumbersAtTheLimits) {
  for (const FloatLimit& limit : kFloatLimits) {
    const double low = limit.low, high = limit.high;
    for (double value : {low, high, low - 1, high + 1, 0.99, 1e-6, 2e3, -2e3, 1e6, -1e6, 1e5, 1.0, 0.0}) {
      std::ostringstream field;
      field.precision(17);
      field << '"' << limit.field << "\":" << value;
      SCOPED_TRACE(field.str());
      auto parsed = Ask(field.str());
      const auto* request = std::get_if<std::unique_ptr<ParsedRequest>>(&parsed);
      if (request) {
        EXPECT_EQ(TailRefusal((*request)->choices[0].sampling), "");
      }
    }
    std::ostringstream most;
    most << '"' << limit.field << "\":" << (std::string_view(limit.field) == "top_p" ? 1 : limit.field == std::string_view("adaptive_decay") ? 0.99 : high);
    ExpectTailTakesWhatPasses(most.str(), true);
  }
  const auto biases = [](size_t count, const std::string& begin, const std::string& end) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += (i > 0 ? ",[" : "[") + begin + std::to_string(i) + end + ",1]";
    return "\"logit_bias\":[" + list + "]";
  };
  ExpectTailTakesWhatPasses(biases(kLogitBiasMax, "", ""), true);
  ExpectTailTakesWhatPasses(biases(kLogitBiasMax + 1, "", ""), false);
  // Each text becomes several tokens.
  ExpectTailTakesWhatPasses(biases(kLogitBiasMax / 2, "\"x", " y z\""), false);
  ExpectTailTakesWhatPasses(R"("reasoning_budget_tokens":2147483647)", true);
  ExpectTailTakesWhatPasses(R"("min_keep":1000000,"dry_allowed_length":16777216,"repeat_last_n":2147483647)", true);
}

// Both rooms listen to llama.cpp's log, and each one's causes stand in its errors, whoever came first.
class LlamaLogTest : public testing::Test {
 protected:
  static void ExpectBothHear() {
    TakeLlamaComplaint();
    EXPECT_EQ(llama_model_load_from_file("no such file", llama_model_default_params()), nullptr);
    EXPECT_NE(TakeLlamaComplaint(), "");

    // A tokenizer that our own reader takes and llama.cpp does not know.
    std::ifstream in(MESHNET_LLAMA_CPP_DIR "/models/ggml-vocab-qwen2.gguf", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::string key = "tokenizer.ggml.pre";
    const size_t value = bytes.find(key) + key.size() + 12;
    ASSERT_EQ(bytes.substr(value, 5), "qwen2");
    bytes.replace(value, 5, "qwen9");
    tiny::TestFolder folder;
    std::ofstream(folder.File("vocab.gguf"), std::ios::binary) << bytes;
    TextModelOptions options;
    options.vocab_path = folder.File("vocab.gguf");
    auto created = CreateLlamaTextModel(options);
    ASSERT_FALSE(created.ok());
    EXPECT_NE(created.status().message().find("pre-tokenizer"), std::string::npos) << created.status().message();
  }
  static void LoadText() { text::Model("qwen2", text::kChatMl); }
};

TEST_F(LlamaLogTest, EngineFirst) {
  UseLlamaLibrary();
  LoadText();
  ExpectBothHear();
}

TEST_F(LlamaLogTest, TextFirst) {
  LoadText();
  UseLlamaLibrary();
  ExpectBothHear();
}

// The templates of the pinned llama.cpp wait for a tool call with these patterns, and only these are run over an answer.
TEST(TriggerPatternTest, AreThoseOfThePinnedTemplates) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(MESHNET_LLAMA_CPP_DIR "/common")) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || entry.path().extension() != ".cpp" || name == "sampling.cpp") continue;
    std::ifstream in(entry.path());
    const std::string source((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::string kind = "COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN";
    for (size_t at = source.find(kind); at != std::string::npos; at = source.find(kind, at + 1)) {
      std::string pattern;
      for (size_t i = source.find('"', at) + 1; source.at(i) != '"'; ++i) {
        if (source[i] == '\\') ++i;
        pattern += source[i];
      }
      // Repeats a class without bound: refused, so that model has no tools here.
      if (name != "muse-glimmer.cpp") found.push_back(pattern);
    }
  }
  EXPECT_EQ(std::set<std::string_view>(found.begin(), found.end()), std::set<std::string_view>(std::begin(kTriggerPatterns), std::end(kTriggerPatterns)));
}

}  // namespace
}  // namespace meshnet
