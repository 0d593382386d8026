// Bytes as a worker's answers: whatever a broken or hostile worker sends, a gateway gets its own types with all promises kept, or a Status.
#include "base/check.h"
#include "wire/error_detail.h"
#include "wire/validate_reply.h"
#include "wire/wire_limits.h"

namespace {

using namespace meshnet;

template <typename Message>
bool Parse(const uint8_t* data, size_t size, Message& message) {
  return message.ParseFromArray(data, static_cast<int>(size));
}

void CheckAnswer(const shard::v1::StepAnswer& answer) {
  if (answer.has_error()) {
    if (const std::optional<Refusal> refusal = FromProto(answer.error())) MESHNET_CHECK(refusal->message.size() <= kMessageTextMax);
  }
  if (!answer.has_result()) return;
  const Result<StepResult> result = ValidateStepResult(answer.result());
  if (!result.ok()) return;
  MESHNET_CHECK(result->output.values().size() == size_t{result->output.rows()} * result->output.width());
  MESHNET_CHECK(result->output.all_finite());
  for (const SampledToken& token : result->sampled) MESHNET_CHECK(token.token >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shard::v1::DescribeReply describe;
  if (Parse(data, size, describe)) {
    const Result<ShardDescription> description = ValidateDescription(describe);
    if (description.ok()) {
      MESHNET_CHECK(description->range.end <= description->layer_count);
      MESHNET_CHECK(description->model_name.find('\n') == std::string::npos);
    }
  }
  shard::v1::OpenReply open;
  if (Parse(data, size, open)) (void)ValidateOpenReply(open).ok();
  shard::v1::StatsReply stats;
  if (Parse(data, size, stats)) (void)ValidateStats(stats).ok();
  shard::v1::ReleaseReply release;
  if (Parse(data, size, release)) (void)ValidateRelease(release).ok();
  shard::v1::ForwardReply forward;
  if (Parse(data, size, forward)) {
    for (const shard::v1::StepAnswer& answer : forward.answers()) CheckAnswer(answer);
  }
  return 0;
}
