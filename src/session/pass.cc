#include "session/pass.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace meshnet {
namespace {

std::string Text(uint64_t value) { return std::to_string(value); }

}  // namespace

Pass::Pass(PassPlan plan, SessionKey key, Journal& journal, std::vector<StageBook>& books, std::vector<const ShardDescription*> shapes)
    : plan_(std::move(plan)), key_(key), journal_(journal), books_(books), shapes_(std::move(shapes)), lanes_(shapes_.size()) {
  MESHNET_CHECK(!plan_.chunks.empty() && !lanes_.empty() && lanes_.size() == books_.size() && plan_.chunks_in_flight_max > 0);
  digests_.push_back(journal_.DigestAt(plan_.chunks.front().start));
  for (const Chunk& chunk : plan_.chunks) digests_.push_back(journal_.DigestAt(chunk.end()));
}

void Pass::Enter(size_t stage, std::optional<HiddenState> input) {
  Lane& lane = lanes_[stage];
  const size_t chunk_index = lane.entered++;
  const Chunk& chunk = plan_.chunks[chunk_index];
  const bool last = chunk_index + 1 == plan_.chunks.size();
  Item item;
  item.chunk = chunk_index;
  Step& step = item.step;
  step.key = key_;
  step.incarnation = books_[stage].incarnation;
  step.seq = StepSeq(books_[stage].acked.value + lane.items.size() + 1);
  step.kind = plan_.decode ? StepKind::kDecode : StepKind::kPrefill;
  step.start = chunk.start;
  step.prefix_digest = digests_[chunk_index];
  const auto tokens = journal_.tokens().subspan(chunk.start.value, chunk.count);
  step.tokens.assign(tokens.begin(), tokens.end());
  step.input = std::move(input);
  if (is_tail(stage)) {
    const bool logits = plan_.yield == PassPlan::Yield::kLogits;
    step.rows = !last ? RowsWanted::kNone : logits ? RowsWanted::kAll : RowsWanted::kLast;
    step.logits_wanted = last && logits;
    if (last) step.sampling = plan_.sampling;
  }
  lane.items.push_back(std::move(item));
}

bool Pass::HasCredit(const Lane& lane, size_t stage, const Item& item) const {
  // With nothing outstanding the step brings its own acknowledgement, and so its own credit.
  if (lane.in_flight == 0) return true;
  const Credit& credit = books_[stage].credit;
  if (item.step.seq > credit.step_seq_max) return false;
  uint64_t pending = item.step.tokens.size();
  for (const Item& other : lane.items) {
    if (other.state == ItemState::kInFlight) pending += other.step.tokens.size();
  }
  return pending <= credit.pending_tokens_max;
}

std::optional<StepToSend> Pass::NextSend(Time now) {
  if (abandoned_) return std::nullopt;
  Lane& head = lanes_.front();
  while (head.entered < plan_.chunks.size() && head.entered - tail_chunks_ < plan_.chunks_in_flight_max) Enter(0, std::nullopt);
  for (size_t stage = lanes_.size(); stage-- > 0;) {
    Lane& lane = lanes_[stage];
    for (Item& item : lane.items) {
      if (item.state == ItemState::kInFlight || item.state == ItemState::kAnswered) continue;
      // Later steps of the stage stay behind one that waits or is in trouble: seqs go out without gaps.
      if (item.state == ItemState::kTroubled || item.due > now || !HasCredit(lane, stage, item)) break;
      item.state = ItemState::kInFlight;
      item.unknown = true;
      item.ticket = next_ticket_++;
      ++lane.in_flight;
      ++in_flight_;
      item.step.ack = books_[stage].acked;
      return StepToSend{stage, item.ticket, &item.step};
    }
  }
  return std::nullopt;
}

std::optional<Time> Pass::NextDue(Time now) const {
  std::optional<Time> due;
  if (abandoned_) return due;
  for (const Lane& lane : lanes_) {
    for (const Item& item : lane.items) {
      if (item.state == ItemState::kWaiting && item.due > now) due = due ? std::min(*due, item.due) : item.due;
    }
  }
  return due;
}

Pass::Item* Pass::FindItem(size_t stage, uint64_t ticket) {
  for (Item& item : lanes_[stage].items) {
    if (item.state == ItemState::kInFlight && item.ticket == ticket) return &item;
  }
  return nullptr;
}

void Pass::OnReply(size_t stage, uint64_t ticket, Reply<StepResult> reply) {
  Lane& lane = lanes_.at(stage);
  Item* item = FindItem(stage, ticket);
  MESHNET_CHECK(item != nullptr);  // each send is answered exactly once
  --lane.in_flight;
  --in_flight_;
  if (auto* result = std::get_if<StepResult>(&reply)) {
    item->state = ItemState::kAnswered;
    item->unknown = false;
    item->result = std::move(*result);
  } else {
    item->state = ItemState::kTroubled;
    item->alone = item == &lane.items.front();
    if (auto* refusal = std::get_if<Refusal>(&reply)) {
      // Had the step been committed before, this would have been its recorded reply.
      item->unknown = false;
      item->trouble = std::move(*refusal);
    }
    if (auto* fault = std::get_if<TransportFault>(&reply)) item->trouble = std::move(*fault);
  }
  Collect(stage);
}

// Takes the answered steps off the front of a lane, in order, and hands their rows on.
void Pass::Collect(size_t stage) {
  Lane& lane = lanes_[stage];
  while (!lane.items.empty() && lane.items.front().state == ItemState::kAnswered) {
    Item& item = lane.items.front();
    if (std::optional<Violation> violation = Check(stage, item)) {
      item.state = ItemState::kTroubled;
      item.alone = true;
      item.trouble = std::move(*violation);
      return;
    }
    StageBook& book = books_[stage];
    book.acked = item.step.seq;
    book.credit.step_seq_max = std::max(book.credit.step_seq_max, item.result.credit.step_seq_max);
    book.credit.pending_tokens_max = item.result.credit.pending_tokens_max;
    const Chunk& chunk = plan_.chunks[item.chunk];
    journal_.Commit(stage, chunk.end());
    StepResult result = std::move(item.result);
    lane.items.pop_front();
    if (is_tail(stage)) {
      ++tail_chunks_;
      if (done()) {
        sampled_ = std::move(result.sampled);
        logits_ = std::move(result.output);
      }
    } else if (!abandoned_) {
      Enter(stage + 1, std::move(result.output));
    }
  }
}

std::optional<Violation> Pass::Check(size_t stage, const Item& item) const {
  const Chunk& chunk = plan_.chunks[item.chunk];
  const StepResult& result = item.result;
  if (result.seq != item.step.seq) {
    return Violation{"answered step " + Text(result.seq.value) + " instead of " + Text(item.step.seq.value)};
  }
  if (result.past_len != chunk.end()) {
    return Violation{"past length " + Text(result.past_len.value) + " after a step that ends at " + Text(chunk.end().value)};
  }
  if (result.digest != digests_[item.chunk + 1]) {
    return Violation{"another digest of the first " + Text(chunk.end().value) + " tokens than the journal's"};
  }
  if (is_tail(stage)) return CheckTail(item, item.chunk + 1 == plan_.chunks.size());
  if (result.output.rows() != chunk.count || result.output.width() != shapes_[stage]->boundary_width) {
    return Violation{"hidden state of " + Text(result.output.rows()) + " rows of " + Text(result.output.width()) + " instead of " +
                     Text(chunk.count) + " of " + Text(shapes_[stage]->boundary_width)};
  }
  return std::nullopt;
}

std::optional<Violation> Pass::CheckTail(const Item& item, bool last) const {
  if (!last) return std::nullopt;
  const StepResult& result = item.result;
  const uint32_t vocabulary = shapes_.back()->vocabulary_size;
  if (plan_.yield == PassPlan::Yield::kLogits) {
    if (result.output.rows() == item.step.tokens.size() && result.output.width() == vocabulary) return std::nullopt;
    return Violation{"logits of " + Text(result.output.rows()) + " rows of " + Text(result.output.width()) + " instead of " +
                     Text(item.step.tokens.size()) + " of " + Text(vocabulary)};
  }
  if (result.sampled.size() != 1) return Violation{Text(result.sampled.size()) + " sampled tokens instead of one"};
  const Token token = result.sampled.front().token;
  if (token < 0 || static_cast<uint32_t>(token) >= vocabulary) return Violation{"sampled token " + std::to_string(token) + " outside the vocabulary"};
  return std::nullopt;
}

std::optional<Pass::Stuck> Pass::stuck() {
  if (abandoned_) return std::nullopt;
  for (size_t stage = 0; stage < lanes_.size(); ++stage) {
    Lane& lane = lanes_[stage];
    if (lane.in_flight > 0 || lane.items.empty() || lane.items.front().state != ItemState::kTroubled) continue;
    Item& item = lane.items.front();
    Stuck stuck{stage, item.trouble, item.step.start, std::nullopt};
    const auto* refusal = std::get_if<Refusal>(&item.trouble);
    if (refusal != nullptr && refusal->session && item.alone) {
      const PastLen past = refusal->session->past_len;
      if (past <= journal_.length() && journal_.DigestAt(past) == refusal->session->digest) stuck.shard_agreed = past;
    }
    return stuck;
  }
  return std::nullopt;
}

void Pass::Resend(size_t stage, Time due) {
  for (Item& item : lanes_.at(stage).items) {
    // An answered step behind the stuck one stays answered: its reply is held.
    if (item.state == ItemState::kTroubled) {
      item.state = ItemState::kWaiting;
      item.due = due;
    }
  }
}

// What a stage holds after it refused the step for good.
void Pass::NoteRefusal(size_t stage, const Item& item, const Refusal& refusal) {
  const PastLen start = item.step.start;
  if (!refusal.session || !item.alone) {
    // A step that had begun may have cut the session to its start before it was rolled back there.
    const bool began = refusal.reason == Reason::kExecFailed || refusal.reason == Reason::kCancelled;
    if (began) journal_.Correct(stage, {start, start});
    return;
  }
  const PastLen past = refusal.session->past_len;
  const PastLen agreed = journal_.stages()[stage].agreed;
  if (past <= journal_.length() && journal_.DigestAt(past) == refusal.session->digest) {
    journal_.Correct(stage, {past, past});
  } else {
    // Its end differs from the journal. Of what comes before we know what we knew, unless that was all of it.
    journal_.Correct(stage, {past, agreed < past ? agreed : PastLen(0)});
  }
  books_[stage].acked = std::max(books_[stage].acked, StepSeq(refusal.session->next_step.value - 1));
}

void Pass::Close() {
  abandoned_ = true;
  for (size_t stage = 0; stage < lanes_.size(); ++stage) {
    Lane& lane = lanes_[stage];
    for (const Item& item : lane.items) {
      // An answered step behind an unanswered one was committed, but so was that one then, and its reply is not here.
      if (item.unknown || item.state == ItemState::kAnswered || std::holds_alternative<Violation>(item.trouble)) books_[stage].unsure = true;
    }
    if (!lane.items.empty() && lane.items.front().state == ItemState::kTroubled) {
      if (const auto* refusal = std::get_if<Refusal>(&lane.items.front().trouble)) NoteRefusal(stage, lane.items.front(), *refusal);
    }
    in_flight_ -= lane.in_flight;
    lane = Lane();
  }
}

bool Pass::in_flight_at(size_t stage) const { return lanes_.at(stage).in_flight > 0; }

PastLen Pass::tail_end() const { return tail_chunks_ == 0 ? plan_.chunks.front().start : plan_.chunks[tail_chunks_ - 1].end(); }

SampledToken Pass::TakeToken() {
  MESHNET_CHECK(done() && sampled_.size() == 1);
  return std::move(sampled_.front());
}

}  // namespace meshnet
