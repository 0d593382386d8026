#include "wire/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "protocol/sampling_limits.h"
#include "wire/convert.h"
#include "wire/validate_reply.h"
#include "wire/validate_sampling.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

constexpr Time kNow{std::chrono::hours(1)};

template <typename Id>
Id Filled(uint8_t value) {
  Id id;
  id.bytes.fill(value);
  return id;
}

ShardShape Middle() { return {.head = false, .tail = false, .boundary_width = 4, .vocabulary_size = 100, .chunk_rows_max = 8, .frame_bytes_max = 1 << 20}; }
ShardShape Head() {
  ShardShape shape = Middle();
  shape.head = true;
  return shape;
}
ShardShape Tail() {
  ShardShape shape = Middle();
  shape.tail = true;
  return shape;
}

Step SomeStep() {
  Step step;
  step.key = {Filled<SessionId>(1), Epoch(2)};
  step.incarnation = Filled<Incarnation>(3);
  step.seq = StepSeq(4);
  step.start = PastLen(5);
  step.prefix_digest = Filled<PrefixDigest>(6);
  step.tokens = {7, 8};
  step.input = HiddenState(2, 4, {1, 2, 3, 4, 5, 6, 7, -8.5f});
  step.ack = StepSeq(3);
  return step;
}

SamplingParams OddSampling() {
  SamplingParams params;
  params.seed = 0xffffffff;
  params.prompt_len = PastLen(7);
  params.temperature = 0;
  params.dynatemp_range = 0.5f;
  params.dynatemp_exponent = 2;
  params.top_k = -1;
  params.top_p = 0.5f;
  params.min_p = 0;
  params.top_n_sigma = 2;
  params.typical_p = 0.75f;
  params.xtc_probability = 0.25f;
  params.xtc_threshold = 0.5f;
  params.min_keep = 2;
  params.repeat_last_n = -1;
  params.repeat_penalty = 1.5f;
  params.presence_penalty = -1;
  params.frequency_penalty = 2;
  params.dry_multiplier = 1;
  params.dry_base = 2;
  params.dry_allowed_length = 3;
  params.dry_penalty_last_n = 0;
  params.dry_sequence_breakers = {"\n", "\xff"};
  params.mirostat = 2;
  params.mirostat_tau = 3;
  params.mirostat_eta = 0.5f;
  params.adaptive_target = 0.5f;
  params.adaptive_decay = 0.5f;
  params.ignore_eos = true;
  params.samplers = "kpmt";
  params.logit_bias = {{3, -std::numeric_limits<float>::infinity()}, {99, 1.5f}};
  params.grammar = "root ::= \"x\"";
  params.grammar_type = 2;
  params.grammar_lazy = true;
  params.grammar_triggers = {{1, "<tool\xff", -1}, {0, "", 5}};
  params.preserved_tokens = {1, 2};
  params.generation_prompt = "<|assistant|>";
  params.reasoning_budget_tokens = 10;
  params.reasoning_budget_start = {4};
  params.reasoning_budget_end = {{5, 6}, {7}};
  params.reasoning_budget_forced = {8, 9};
  params.logprobs = 5;
  params.logprobs_wanted = true;
  params.post_sampling_probs = true;
  return params;
}

TEST(ValidateStepTest, KeepsEveryFieldOverTheWire) {
  Step step = SomeStep();
  step.kind = StepKind::kPrefill;
  step.rows = RowsWanted::kLast;
  step.logits_wanted = true;
  step.sampling = OddSampling();
  step.deadline = kNow + std::chrono::milliseconds(250);
  pb::Step parsed;
  ASSERT_TRUE(parsed.ParseFromString(ToProto(step, 77, kNow).SerializeAsString()));
  EXPECT_EQ(parsed.request_id(), 77u);
  std::variant<IncomingStep, Refusal> read = ValidateStep(parsed, Tail(), kNow + std::chrono::hours(2));
  ASSERT_TRUE(std::holds_alternative<IncomingStep>(read)) << std::get<Refusal>(read).message;
  const IncomingStep& incoming = std::get<IncomingStep>(read);
  ASSERT_FALSE(incoming.fields.has_value()) << incoming.fields->message;
  const Step& back = incoming.step;
  EXPECT_EQ(back.key, step.key);
  EXPECT_EQ(back.incarnation, step.incarnation);
  EXPECT_EQ(back.seq, step.seq);
  EXPECT_EQ(back.kind, step.kind);
  EXPECT_EQ(back.start, step.start);
  EXPECT_EQ(back.prefix_digest, step.prefix_digest);
  EXPECT_EQ(back.tokens, step.tokens);
  ASSERT_TRUE(back.input.has_value());
  EXPECT_TRUE(std::ranges::equal(back.input->values(), step.input->values()));
  EXPECT_EQ(back.rows, step.rows);
  EXPECT_TRUE(back.logits_wanted);
  EXPECT_EQ(back.sampling, step.sampling);
  EXPECT_EQ(back.ack, step.ack);
  // The deadline is counted from arrival, on the clock of whoever received it.
  EXPECT_EQ(back.deadline, kNow + std::chrono::hours(2) + std::chrono::milliseconds(250));
}

TEST(ValidateStepTest, DefaultSamplingIsInRange) {
  std::variant<SamplingParams, Refusal> read = ValidateSampling(ToProto(SamplingParams()), 100);
  ASSERT_TRUE(std::holds_alternative<SamplingParams>(read)) << std::get<Refusal>(read).message;
  EXPECT_EQ(std::get<SamplingParams>(read), SamplingParams());
}

TEST(ValidateStepTest, RefusesAStepWithoutAddressAtOnce) {
  struct Row {
    const char* name;
    std::function<void(pb::Step&)> spoil;
    Detail detail;
  } rows[] = {
      {"no ref", [](pb::Step& s) { s.clear_ref(); }, Detail::kShape},
      {"short session id", [](pb::Step& s) { s.mutable_ref()->set_route_session_id("short"); }, Detail::kShape},
      {"long session id", [](pb::Step& s) { s.mutable_ref()->set_route_session_id(std::string(17, 'x')); }, Detail::kShape},
      {"epoch 0", [](pb::Step& s) { s.mutable_ref()->set_route_epoch(0); }, Detail::kShape},
      {"no incarnation", [](pb::Step& s) { s.clear_incarnation(); }, Detail::kShape},
      {"long incarnation", [](pb::Step& s) { s.set_incarnation(std::string(32, 'x')); }, Detail::kShape},
      {"step_seq 0", [](pb::Step& s) { s.set_step_seq(0); }, Detail::kShape},
      {"too many bytes", [](pb::Step& s) { s.mutable_input()->set_payload(std::string((1 << 20) + 1, 'x')); }, Detail::kLimit},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::Step wire = ToProto(SomeStep(), 1, kNow);
    row.spoil(wire);
    std::variant<IncomingStep, Refusal> read = ValidateStep(wire, Middle(), kNow);
    ASSERT_TRUE(std::holds_alternative<Refusal>(read));
    EXPECT_EQ(std::get<Refusal>(read).reason, Reason::kBadRequest);
    EXPECT_EQ(std::get<Refusal>(read).detail, row.detail);
    EXPECT_FALSE(std::get<Refusal>(read).message.empty());
  }
}

TEST(ValidateStepTest, LeavesOtherFaultsToTheirPlaceInTheOrderOfChecks) {
  struct Row {
    const char* name;
    ShardShape shape;
    std::function<void(pb::Step&)> spoil;
    Reason reason;
    Detail detail;
  } rows[] = {
      {"kind unspecified", Middle(), [](pb::Step& s) { s.clear_kind(); }, Reason::kBadRequest, Detail::kShape},
      {"kind unknown", Middle(), [](pb::Step& s) { s.set_kind(static_cast<pb::StepKind>(9)); }, Reason::kBadRequest, Detail::kShape},
      {"rows unspecified", Middle(), [](pb::Step& s) { s.clear_rows(); }, Reason::kBadRequest, Detail::kShape},
      {"rows unknown", Middle(), [](pb::Step& s) { s.set_rows(static_cast<pb::RowsWanted>(-1)); }, Reason::kBadRequest, Detail::kShape},
      {"start_pos missing", Middle(), [](pb::Step& s) { s.clear_start_pos(); }, Reason::kBadRequest, Detail::kShape},
      {"digest missing", Middle(), [](pb::Step& s) { s.clear_prefix_digest(); }, Reason::kBadRequest, Detail::kShape},
      {"digest long", Middle(), [](pb::Step& s) { s.set_prefix_digest(std::string(32, 'x')); }, Reason::kBadRequest, Detail::kShape},
      {"no tokens", Middle(), [](pb::Step& s) { s.clear_tokens(); }, Reason::kBadRequest, Detail::kShape},
      {"too many tokens", Middle(), [](pb::Step& s) { for (int i = 0; i < 9; ++i) s.add_tokens(1); }, Reason::kBadRequest, Detail::kLimit},
      {"decode of two", Middle(), [](pb::Step& s) { s.set_kind(pb::STEP_KIND_DECODE); }, Reason::kBadRequest, Detail::kShape},
      {"negative token", Middle(), [](pb::Step& s) { s.set_tokens(0, -1); }, Reason::kBadRequest, Detail::kToken},
      {"token beyond the vocabulary", Middle(), [](pb::Step& s) { s.set_tokens(1, 100); }, Reason::kBadRequest, Detail::kToken},
      {"input on the head", Head(), [](pb::Step&) {}, Reason::kBadRequest, Detail::kShape},
      {"no input behind the head", Middle(), [](pb::Step& s) { s.clear_input(); }, Reason::kBadRequest, Detail::kShape},
      {"width of another boundary", Middle(), [](pb::Step& s) { s.mutable_input()->set_width(8); }, Reason::kBoundaryMismatch, Detail::kNone},
      {"rows unlike tokens", Middle(), [](pb::Step& s) { s.mutable_input()->set_rows(3); }, Reason::kBadRequest, Detail::kShape},
      {"layout version", Middle(), [](pb::Step& s) { s.mutable_input()->set_layout_version(2); }, Reason::kBadRequest, Detail::kEncoding},
      {"encoding missing", Middle(), [](pb::Step& s) { s.mutable_input()->clear_encoding(); }, Reason::kBadRequest, Detail::kEncoding},
      {"encoding f16", Middle(), [](pb::Step& s) { s.mutable_input()->set_encoding(pb::ENCODING_F16); }, Reason::kBadRequest, Detail::kEncoding},
      {"encoding unknown", Middle(), [](pb::Step& s) { s.mutable_input()->set_encoding(static_cast<pb::Encoding>(7)); }, Reason::kBadRequest, Detail::kEncoding},
      {"payload short", Middle(), [](pb::Step& s) { s.mutable_input()->mutable_payload()->pop_back(); }, Reason::kBadRequest, Detail::kShape},
      {"payload long", Middle(), [](pb::Step& s) { s.mutable_input()->mutable_payload()->push_back('x'); }, Reason::kBadRequest, Detail::kShape},
      {"payload empty", Middle(), [](pb::Step& s) { s.mutable_input()->clear_payload(); }, Reason::kBadRequest, Detail::kShape},
      {"logits before the tail", Middle(), [](pb::Step& s) { s.set_logits_wanted(true); }, Reason::kBadRequest, Detail::kShape},
      {"sampling before the tail", Middle(), [](pb::Step& s) { *s.mutable_sampling() = ToProto(SamplingParams()); }, Reason::kBadRequest, Detail::kShape},
      {"sampling without its values", Tail(), [](pb::Step& s) { s.mutable_sampling(); }, Reason::kBadRequest, Detail::kLimit},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::Step wire = ToProto(SomeStep(), 1, kNow);
    row.spoil(wire);
    std::variant<IncomingStep, Refusal> read = ValidateStep(wire, row.shape, kNow);
    ASSERT_TRUE(std::holds_alternative<IncomingStep>(read)) << std::get<Refusal>(read).message;
    const IncomingStep& incoming = std::get<IncomingStep>(read);
    ASSERT_TRUE(incoming.fields.has_value());
    EXPECT_EQ(incoming.fields->reason, row.reason);
    EXPECT_EQ(incoming.fields->detail, row.detail) << incoming.fields->message;
    EXPECT_FALSE(incoming.fields->message.empty());
    EXPECT_EQ(incoming.step.seq, StepSeq(4));  // it can still be fenced and looked up
  }
}

TEST(ValidateStepTest, RefusesValuesThatAreNotFinite) {
  for (float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                      -std::numeric_limits<float>::signaling_NaN()}) {
    for (size_t place = 0; place < 8; ++place) {
      std::vector<float> values(8, 1.0f);
      values[place] = value;
      Step step = SomeStep();
      step.input = HiddenState(2, 4, std::move(values));
      std::variant<IncomingStep, Refusal> read = ValidateStep(ToProto(step, 1, kNow), Middle(), kNow);
      ASSERT_TRUE(std::get<IncomingStep>(read).fields.has_value());
      EXPECT_EQ(std::get<IncomingStep>(read).fields->detail, Detail::kNonFinite);
    }
  }
  Step step = SomeStep();
  step.input = HiddenState(2, 4, {std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(), std::numeric_limits<float>::denorm_min(), -0.0f, 0, 1, 2, 3});
  EXPECT_FALSE(std::get<IncomingStep>(ValidateStep(ToProto(step, 1, kNow), Middle(), kNow)).fields.has_value());
}

TEST(ValidateStepTest, AFrameWhoseSizeOverflowsIsRefusedBeforeAnythingIsAllocated) {
  ShardShape shape = Middle();
  shape.chunk_rows_max = 0xffffffff;
  for (auto [rows, width] : {std::pair<uint32_t, uint32_t>{0xffffffff, 0xffffffff}, {0x80000000, 0x80000000}, {0x40000000, 4}, {1u << 31, 1u << 31}}) {
    pb::Frame frame;
    frame.set_layout_version(1);
    frame.set_encoding(pb::ENCODING_F32);
    frame.set_rows(rows);
    frame.set_width(width);
    pb::Step wire = ToProto(SomeStep(), 1, kNow);
    *wire.mutable_input() = frame;
    shape.boundary_width = width;
    std::variant<IncomingStep, Refusal> read = ValidateStep(wire, shape, kNow);
    EXPECT_TRUE(std::get<IncomingStep>(read).fields.has_value());
  }
}

TEST(ValidateStepTest, RefusesLogitsThatNoAnswerCanHold) {
  ShardShape shape = Tail();
  shape.vocabulary_size = 1u << 30;
  Step step = SomeStep();
  step.logits_wanted = true;
  step.rows = RowsWanted::kLast;
  std::variant<IncomingStep, Refusal> read = ValidateStep(ToProto(step, 1, kNow), shape, kNow);
  EXPECT_EQ(std::get<IncomingStep>(read).fields->detail, Detail::kLimit);
}

TEST(ValidateStepTest, ADeadlineCannotOverflow) {
  pb::Step wire = ToProto(SomeStep(), 1, kNow);
  wire.set_deadline_ms(UINT64_MAX);
  EXPECT_EQ(std::get<IncomingStep>(ValidateStep(wire, Middle(), kNow)).step.deadline, kNow + std::chrono::hours(24));
  Step late = SomeStep();
  late.deadline = kNow - std::chrono::hours(1);
  EXPECT_EQ(ToProto(late, 1, kNow).deadline_ms(), 1u);  // 0 would mean none
}

TEST(ValidateSamplingTest, NamesTheFieldThatIsOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  struct Row {
    const char* field;
    std::function<void(SamplingParams&)> spoil;
  } rows[] = {
      {"temperature", [&](SamplingParams& p) { p.temperature = nan; }},
      {"temperature", [&](SamplingParams& p) { p.temperature = inf; }},
      {"dynatemp_range", [](SamplingParams& p) { p.dynatemp_range = -1; }},
      {"dynatemp_exponent", [&](SamplingParams& p) { p.dynatemp_exponent = nan; }},
      {"top_p", [](SamplingParams& p) { p.top_p = -0.1f; }},
      {"min_p", [](SamplingParams& p) { p.min_p = 2; }},
      {"top_n_sigma", [&](SamplingParams& p) { p.top_n_sigma = nan; }},
      {"typical_p", [&](SamplingParams& p) { p.typical_p = inf; }},
      {"xtc_probability", [](SamplingParams& p) { p.xtc_probability = -1; }},
      {"xtc_threshold", [](SamplingParams& p) { p.xtc_threshold = 1.5f; }},
      {"min_keep", [](SamplingParams& p) { p.min_keep = -1; }},
      {"repeat_last_n", [](SamplingParams& p) { p.repeat_last_n = -2; }},
      {"repeat_last_n", [](SamplingParams& p) { p.repeat_last_n = INT32_MAX; }},
      {"repeat_penalty", [](SamplingParams& p) { p.repeat_penalty = 0; }},
      {"presence_penalty", [&](SamplingParams& p) { p.presence_penalty = -inf; }},
      {"frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = 1e9f; }},
      {"dry_multiplier", [](SamplingParams& p) { p.dry_multiplier = -1; }},
      {"dry_base", [&](SamplingParams& p) { p.dry_base = nan; }},
      {"dry_allowed_length", [](SamplingParams& p) { p.dry_allowed_length = -1; }},
      {"dry_penalty_last_n", [](SamplingParams& p) { p.dry_penalty_last_n = -5; }},
      {"dry_sequence_breakers", [](SamplingParams& p) { p.dry_sequence_breakers.assign(kSequenceBreakersMax + 1, "x"); }},
      {"dry_sequence_breakers", [](SamplingParams& p) { p.dry_sequence_breakers = {std::string(kSequenceBreakerBytesMax + 1, 'x')}; }},
      {"dry_sequence_breakers", [](SamplingParams& p) { p.dry_sequence_breakers = {std::string(1, '\0')}; }},
      {"mirostat", [](SamplingParams& p) { p.mirostat = 3; }},
      {"mirostat_tau", [](SamplingParams& p) { p.mirostat_tau = -1; }},
      {"mirostat_eta", [&](SamplingParams& p) { p.mirostat_eta = nan; }},
      {"adaptive_target", [](SamplingParams& p) { p.adaptive_target = 1.5f; }},
      {"adaptive_decay", [](SamplingParams& p) { p.adaptive_decay = 1; }},
      {"samplers", [](SamplingParams& p) { p.samplers = "k;rm"; }},
      {"samplers", [](SamplingParams& p) { p.samplers = std::string(kSamplersMax + 1, 'k'); }},
      {"logit_bias", [](SamplingParams& p) { p.logit_bias = {{100, 1}}; }},
      {"logit_bias", [](SamplingParams& p) { p.logit_bias = {{-1, 1}}; }},
      {"logit_bias", [&](SamplingParams& p) { p.logit_bias = {{1, nan}}; }},
      {"logit_bias", [&](SamplingParams& p) { p.logit_bias = {{1, inf}}; }},
      {"logit_bias", [](SamplingParams& p) { p.logit_bias.assign(kLogitBiasMax + 1, {1, 1}); }},
      {"grammar", [](SamplingParams& p) { p.grammar = std::string(kGrammarBytesMax + 1, '('); }},
      {"grammar", [](SamplingParams& p) { p.grammar = "root ::= root \"a\" | \"b\""; }},
      {"grammar", [](SamplingParams& p) { p.grammar = "root ::= b root\nb ::= y\ny ::= \"\""; }},
      {"grammar", [](SamplingParams& p) { p.grammar = "root ::= <[100]>"; }},
      {"grammar_type", [](SamplingParams& p) { p.grammar_type = 4; }},
      {"grammar_triggers", [](SamplingParams& p) { p.grammar_triggers = {{4, "x", -1}}; }},
      {"grammar_triggers", [](SamplingParams& p) { p.grammar_triggers = {{1, "x", 100}}; }},
      {"grammar_triggers", [](SamplingParams& p) { p.grammar_triggers = {{0, "", -1}}; }},
      {"grammar_triggers", [](SamplingParams& p) { p.grammar_triggers = {{1, std::string(kGrammarTriggerBytesMax + 1, 'x'), -1}}; }},
      {"grammar_triggers", [](SamplingParams& p) { p.grammar_triggers.assign(kGrammarTriggersMax + 1, {1, "x", -1}); }},
      {"preserved_tokens", [](SamplingParams& p) { p.preserved_tokens = {100}; }},
      {"preserved_tokens", [](SamplingParams& p) { p.preserved_tokens.assign(kTokenListMax + 1, 1); }},
      {"generation_prompt", [](SamplingParams& p) { p.generation_prompt = std::string(kGenerationPromptBytesMax + 1, 'x'); }},
      {"reasoning_budget_tokens", [](SamplingParams& p) { p.reasoning_budget_tokens = -2; }},
      {"reasoning_budget_start", [](SamplingParams& p) { p.reasoning_budget_start = {-1}; }},
      {"reasoning_budget_end", [](SamplingParams& p) { p.reasoning_budget_end = {{1}, {100}}; }},
      {"reasoning_budget_end", [](SamplingParams& p) { p.reasoning_budget_end.resize(kReasoningEndsMax + 1); }},
      {"reasoning_budget_end", [](SamplingParams& p) { p.reasoning_budget_end = {std::vector<Token>(kTokenListMax + 1, 1)}; }},
      {"reasoning_budget_forced", [](SamplingParams& p) { p.reasoning_budget_forced = {1000}; }},
      {"logprobs", [](SamplingParams& p) { p.logprobs = kLogprobsMax + 1; }},
      {"prompt_len", [](SamplingParams& p) { p.prompt_len = PastLen(0xffffffff); }},
      {"*", [](SamplingParams& p) { p.preserved_tokens.assign(kStepOverheadBytesMax, 1); }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    SamplingParams params = OddSampling();
    params.grammar = "root ::= <only the tail knows>";
    ASSERT_TRUE(std::holds_alternative<SamplingParams>(ValidateSampling(ToProto(params), 100)));
    row.spoil(params);
    std::variant<SamplingParams, Refusal> read = ValidateSampling(ToProto(params), 100);
    ASSERT_TRUE(std::holds_alternative<Refusal>(read));
    EXPECT_EQ(std::get<Refusal>(read).detail, Detail::kLimit);
    EXPECT_NE(std::get<Refusal>(read).message.find(std::string("sampling.") + row.field), std::string::npos) << std::get<Refusal>(read).message;
  }
}

TEST(ValidateOpenTest, KeepsEveryFieldAndRefusesTheRest) {
  OpenRequest request;
  request.key = {Filled<SessionId>(1), Epoch(9)};
  request.model_root = Filled<Sha256Digest>(2);
  request.range = {3, 5};
  request.reserve_tokens = 77;
  request.cache_salt = std::string("\0\xff salt", 7);
  std::variant<OpenRequest, Refusal> read = ValidateOpen(ToProto(request));
  ASSERT_TRUE(std::holds_alternative<OpenRequest>(read));
  EXPECT_EQ(std::get<OpenRequest>(read), request);

  struct Row {
    const char* name;
    std::function<void(pb::OpenRequest&)> spoil;
    Reason reason;
  } rows[] = {
      {"no version", [](pb::OpenRequest& r) { r.clear_protocol_major(); }, Reason::kProtocolMismatch},
      {"other major", [](pb::OpenRequest& r) { r.set_protocol_major(2); }, Reason::kProtocolMismatch},
      {"newer minor", [](pb::OpenRequest& r) { r.set_protocol_minor(kProtocolMinor + 1); }, Reason::kProtocolMismatch},
      {"no ref", [](pb::OpenRequest& r) { r.clear_ref(); }, Reason::kBadRequest},
      {"epoch 0", [](pb::OpenRequest& r) { r.mutable_ref()->set_route_epoch(0); }, Reason::kBadRequest},
      {"short root", [](pb::OpenRequest& r) { r.set_model_root("x"); }, Reason::kBadRequest},
      {"no range", [](pb::OpenRequest& r) { r.clear_range(); }, Reason::kBadRequest},
      {"empty range", [](pb::OpenRequest& r) { r.mutable_range()->set_end(3); }, Reason::kBadRequest},
      {"long salt", [](pb::OpenRequest& r) { r.set_cache_salt(std::string(65, 'x')); }, Reason::kBadRequest},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::OpenRequest wire = ToProto(request);
    row.spoil(wire);
    read = ValidateOpen(wire);
    ASSERT_TRUE(std::holds_alternative<Refusal>(read));
    EXPECT_EQ(std::get<Refusal>(read).reason, row.reason);
  }
}

ShardDescription SomeDescription() {
  ShardDescription description;
  description.engine_build = "meshnet 0.1";
  description.incarnation = Filled<Incarnation>(1);
  description.state = ShardState::kDraining;
  description.process_id = 12;
  description.model_root = Filled<Sha256Digest>(2);
  description.range_digest = Filled<Sha256Digest>(3);
  description.model_name = "tiny";
  description.architecture = "llama";
  description.layer_count = 10;
  description.range = {2, 5};
  description.boundary_width = 64;
  description.vocabulary_size = 1000;
  description.truncation_class = TruncationClass::kWindow;
  description.window_tokens = 128;
  description.limits = {8, 4096, 32768, 600, 128, 4, 1 << 20};
  description.numerics = {NumericsMode::kExact, "tree", "CPU", "avx2", false, false, "bf16", "q8_0", 2, 4096};
  description.weight_bytes = 1;
  description.hole_bytes = 2;
  description.kv_bytes_per_token = 3;
  description.kv_bytes_predicted = 4;
  description.kv_bytes_allocated = 5;
  description.compute_bytes_allocated = 6;
  return description;
}

TEST(ValidateReplyTest, KeepsADescription) {
  ShardDescription description = SomeDescription();
  Result<ShardDescription> back = ValidateDescription(ToProto(description));
  ASSERT_TRUE(back.ok()) << back.status().message();
  // The wire form has every field, so comparing it compares them all.
  EXPECT_EQ(ToProto(*back).SerializeAsString(), ToProto(description).SerializeAsString());
  EXPECT_EQ(back->numerics, description.numerics);
  EXPECT_EQ(back->limits.window_steps, 4u);
}

TEST(ValidateReplyTest, AModelNameThatIsNoTextStillTravels) {
  ShardDescription description = SomeDescription();
  description.model_name = "bad\xff\x1b name" + std::string(5000, 'x');
  std::string bytes = ToProto(description).SerializeAsString();
  pb::DescribeReply parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  EXPECT_EQ(ValidateDescription(parsed)->model_name.substr(0, 10), "bad?  name");
}

TEST(ValidateReplyTest, RefusesMalformedAnswers) {
  pb::DescribeReply good = ToProto(SomeDescription());
  for (auto spoil : std::initializer_list<std::function<void(pb::DescribeReply&)>>{
           [](auto& r) { r.set_incarnation("x"); }, [](auto& r) { r.clear_model_root(); }, [](auto& r) { r.set_range_digest(std::string(31, 'x')); },
           [](auto& r) { r.set_state(static_cast<pb::ShardState>(42)); }, [](auto& r) { r.clear_truncation_class(); },
           [](auto& r) { r.mutable_range()->set_end(11); }, [](auto& r) { r.clear_range(); }, [](auto& r) { r.mutable_numerics()->clear_mode(); }}) {
    pb::DescribeReply bad = good;
    spoil(bad);
    EXPECT_FALSE(ValidateDescription(bad).ok());
  }
  EXPECT_FALSE(ValidateOpenReply(pb::OpenReply()).ok());
  EXPECT_FALSE(ValidateStepResult(pb::StepResult()).ok());
  EXPECT_FALSE(ValidateStats(pb::StatsReply()).ok());
  EXPECT_FALSE(ValidateRelease(pb::ReleaseReply()).ok());

  StepResult result;
  result.output = HiddenState(1, 1, {std::numeric_limits<float>::quiet_NaN()});
  EXPECT_FALSE(ValidateStepResult(ToProto(result, false)).ok());
}

TEST(ValidateReplyTest, KeepsAStepResultAndAnOpenReply) {
  StepResult result;
  result.seq = StepSeq(3);
  result.past_len = PastLen(9);
  result.digest = Filled<PrefixDigest>(4);
  result.output = HiddenState(1, 2, {1.5f, -2});
  result.sampled = {{5, true, -0.5f, {{5, -0.5f}, {6, -std::numeric_limits<float>::infinity()}}}, {6, false, std::nullopt, {}}};
  result.credit = {StepSeq(7), 100};
  result.kv_tokens_reserved = 64;
  result.queue_time = std::chrono::microseconds(10);
  result.compute_time = std::chrono::microseconds(20);
  Result<StepResult> back = ValidateStepResult(ToProto(result, true));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(back->replayed);
  EXPECT_EQ(back->sampled, result.sampled);
  result.replayed = true;
  EXPECT_EQ(ToProto(*back, true).SerializeAsString(), ToProto(result, true).SerializeAsString());

  OpenReply reply{Filled<Incarnation>(1), PastLen(2), Filled<PrefixDigest>(3), StepSeq(4), {StepSeq(8), 2048}, 512, Epoch(6)};
  Result<OpenReply> opened = ValidateOpenReply(ToProto(reply));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(ToProto(*opened).SerializeAsString(), ToProto(reply).SerializeAsString());
  EXPECT_EQ(opened->superseded, Epoch(6));
}

TEST(FrameBytesMaxTest, IsBoundedWhateverTheWidth) {
  EXPECT_EQ(FrameBytesMax(128, 1024), 128u * 1024 * 4 + kStepOverheadBytesMax);
  EXPECT_EQ(FrameBytesMax(0xffffffff, 0xffffffff), kFrameBytesCeiling);
}

}  // namespace
}  // namespace meshnet
