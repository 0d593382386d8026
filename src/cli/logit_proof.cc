#include "cli/logit_proof.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

namespace meshnet::cli {
namespace {

constexpr Duration kReleaseTimeout = std::chrono::seconds(2);

// The chunks of one session: its prompt in pieces, then one chosen token at a time.
class ChunkList {
 public:
  ChunkList(const std::vector<Token>& prompt, uint32_t steps, uint32_t chunk_rows) : prompt_(prompt), steps_(steps), chunk_rows_(chunk_rows) {}

  size_t count() const { return prompt_chunks() + steps_; }
  size_t prompt_chunks() const { return (prompt_.size() + chunk_rows_ - 1) / chunk_rows_; }
  uint32_t begin(size_t chunk) const {
    return static_cast<uint32_t>(chunk < prompt_chunks() ? chunk * chunk_rows_ : prompt_.size() + chunk - prompt_chunks());
  }
  // `chosen` holds the tokens generated so far.
  std::vector<Token> Tokens(size_t chunk, const std::vector<Token>& chosen) const {
    if (chunk >= prompt_chunks()) return {chosen[chunk - prompt_chunks()]};
    size_t end = std::min<size_t>(prompt_.size(), begin(chunk) + size_t{chunk_rows_});
    return {prompt_.begin() + begin(chunk), prompt_.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  // Whether the last row of this chunk chooses a token.
  bool chooses(size_t chunk) const { return chunk + 1 >= prompt_chunks(); }
  uint32_t generated_from() const { return static_cast<uint32_t>(prompt_.size()) - 1; }

 private:
  const std::vector<Token>& prompt_;
  uint32_t steps_;
  uint32_t chunk_rows_;
};

Status FailureOf(const AnswerFailure& failure) {
  switch (failure.kind) {
    case AnswerFailure::Kind::kRouteDown:
      return PeerUnreachable(failure.message);
    case AnswerFailure::Kind::kContextExceeded:
    case AnswerFailure::Kind::kCapacity:
    case AnswerFailure::Kind::kBadRequest:
    case AnswerFailure::Kind::kInternal:
      return Failure(failure.message);
  }
  return Failure(failure.message);
}

Result<HiddenState> RouteLogits(DrivenSession& session, const std::vector<Token>& tokens) {
  std::variant<HiddenState, AnswerFailure> outcome = session.ForwardLogits(tokens);
  if (AnswerFailure* failure = std::get_if<AnswerFailure>(&outcome)) return FailureOf(*failure);
  return std::get<HiddenState>(std::move(outcome));
}

// The reference alone: all its rows, and the tokens it chose.
struct ReferenceRun {
  std::vector<HiddenState> rows;  // per chunk
  std::vector<Token> chosen;
};

Result<ReferenceRun> RunReference(const ChunkList& chunks, ReferenceContext& reference, const StopProbe& stop) {
  ReferenceRun run;
  reference.Reset();
  for (size_t chunk = 0; chunk < chunks.count(); ++chunk) {
    if (stop()) return Failure("stopped");
    Result<HiddenState> rows = reference.Decode(chunks.Tokens(chunk, run.chosen));
    if (!rows.ok()) return rows.status();
    if (chunks.chooses(chunk)) run.chosen.push_back(Likeliest(rows->row(rows->rows() - 1)));
    run.rows.push_back(std::move(*rows));
  }
  return run;
}

// What the threads of the sessions that run at once share.
struct Together {
  explicit Together(size_t sessions) : turn(static_cast<std::ptrdiff_t>(sessions)) {}

  std::barrier<> turn;
  std::atomic<bool> over{false};
};

// One session of several. It keeps step with the others until all have ended or one failed.
Status RunTogether(const ChunkList& chunks, const ReferenceRun& reference, size_t rounds, DrivenSession& session, Together& together,
                   const StopProbe& stop, SessionProof* proof) {
  Status status;
  for (size_t chunk = 0; chunk < rounds; ++chunk) {
    together.turn.arrive_and_wait();
    if (together.over || chunk >= chunks.count()) continue;
    Result<HiddenState> rows = stop() ? Result<HiddenState>(Failure("stopped")) : RouteLogits(session, chunks.Tokens(chunk, reference.chosen));
    if (!rows.ok()) {
      status = rows.status();
      together.over = true;
      continue;
    }
    CompareRows(*rows, reference.rows[chunk], chunks.begin(chunk), chunks.generated_from(), proof);
  }
  return status;
}

SessionProof NewProof(const ProofPlan& plan, size_t session) {
  SessionProof proof;
  proof.prompt_tokens = static_cast<uint32_t>(plan.prompts[session].size());
  proof.steps = plan.steps;
  return proof;
}

}  // namespace

Token Likeliest(std::span<const float> row) {
  return static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
}

double LargestDifference(std::span<const float> one, std::span<const float> other) {
  if (one.size() != other.size()) return std::numeric_limits<double>::max();
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    if (std::bit_cast<uint32_t>(one[i]) == std::bit_cast<uint32_t>(other[i])) continue;
    double difference = std::abs(static_cast<double>(one[i]) - static_cast<double>(other[i]));
    largest = std::max(largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::max());
  }
  return largest;
}

void CompareRows(const HiddenState& route, const HiddenState& reference, uint32_t first, uint32_t generated_from, SessionProof* proof) {
  uint32_t rows = std::max(route.rows(), reference.rows());
  for (uint32_t i = 0; i < rows; ++i) {
    bool both = i < route.rows() && i < reference.rows();
    double difference = both ? LargestDifference(route.row(i), reference.row(i)) : std::numeric_limits<double>::max();
    bool same_token = both && Likeliest(route.row(i)) == Likeliest(reference.row(i));
    if (first + i >= generated_from && !same_token) proof->tokens_equal = false;
    if (difference > 0 && proof->first_difference.empty()) proof->first_difference = "row of position " + std::to_string(first + i);
    proof->max_abs_logit_diff = std::max(proof->max_abs_logit_diff, difference);
  }
}

Result<std::vector<SessionProof>> ProveAlone(const ProofPlan& plan, Route& route, const Clock& clock, ReferenceContext& reference,
                                             const StopProbe& stop, const ProofProgress& progress) {
  std::vector<SessionProof> proofs;
  for (size_t index = 0; index < plan.prompts.size(); ++index) {
    ChunkList chunks(plan.prompts[index], plan.steps, plan.chunk_rows);
    SessionProof proof = NewProof(plan, index);
    DrivenSession session(route, clock, DriverOptions(), "verify");
    reference.Reset();
    std::vector<Token> chosen;
    for (size_t chunk = 0; chunk < chunks.count(); ++chunk) {
      if (stop()) return Failure("stopped");
      progress("chunk " + std::to_string(chunk + 1) + " of " + std::to_string(chunks.count()));
      std::vector<Token> tokens = chunks.Tokens(chunk, chosen);
      Result<HiddenState> rows = RouteLogits(session, tokens);
      if (!rows.ok()) return rows.status();
      Result<HiddenState> expected = reference.Decode(tokens);
      if (!expected.ok()) return expected.status();
      CompareRows(*rows, *expected, chunks.begin(chunk), chunks.generated_from(), &proof);
      if (chunks.chooses(chunk)) chosen.push_back(Likeliest(expected->row(expected->rows() - 1)));
    }
    session.Release(kReleaseTimeout);
    proofs.push_back(proof);
  }
  return proofs;
}

Result<std::vector<SessionProof>> ProveTogether(const ProofPlan& plan, Route& route, const Clock& clock, ReferenceContext& reference,
                                                const StopProbe& stop, const ProofProgress& progress) {
  size_t count = plan.prompts.size();
  std::vector<ChunkList> chunks;
  std::vector<ReferenceRun> references;
  size_t rounds = 0;
  for (size_t i = 0; i < count; ++i) {
    progress("session " + std::to_string(i + 1) + " of " + std::to_string(count) + " alone");
    chunks.emplace_back(plan.prompts[i], plan.steps, plan.chunk_rows);
    Result<ReferenceRun> run = RunReference(chunks[i], reference, stop);
    if (!run.ok()) return run.status();
    references.push_back(std::move(*run));
    rounds = std::max(rounds, chunks[i].count());
  }

  progress("all sessions at once");
  Together together(count);
  std::vector<SessionProof> proofs;
  std::vector<Status> statuses(count);
  for (size_t i = 0; i < count; ++i) proofs.push_back(NewProof(plan, i));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      DrivenSession session(route, clock, DriverOptions(), "verify");
      statuses[i] = RunTogether(chunks[i], references[i], rounds, session, together, stop, &proofs[i]);
      session.Release(kReleaseTimeout);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return proofs;
}

uint64_t ReferenceBytes(const ProofPlan& plan, uint32_t vocabulary_size) {
  uint64_t rows = 0;
  for (const std::vector<Token>& prompt : plan.prompts) rows += prompt.size() + plan.steps;
  return rows * vocabulary_size * sizeof(float);
}

}  // namespace meshnet::cli
