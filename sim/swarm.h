// What kind of world a seed is: every parameter is drawn, and most kinds of trouble are off in most worlds, so that each is seen alone, in pairs,
// and together with much else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/fake_model.h"
#include "protocol/describe.h"
#include "random.h"
#include "session/session_driver.h"

namespace meshnet::sim {

struct WorkerShape {
  LayerRange range;
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;
  uint32_t window_slack_tokens = 0;
  uint32_t sessions_max = 1;
  uint32_t context_tokens = 32;
  uint32_t budget_tokens = 32;
  uint32_t chunk_rows_max = 8;
  uint64_t ttl_seconds = 10;
  Duration row_time{0};          // of the engine, a row
  Duration load_time{0};         // until a new process serves
};

// Chances of one message, in thousandths.
struct LinkTrouble {
  uint32_t lose_request = 0;
  uint32_t lose_reply = 0;
  uint32_t known_loss = 0;       // of the lost: the caller hears of it at once instead of at its deadline
  uint32_t repeat = 0;           // arrives again, the second time much later or almost at once
  uint32_t stick = 0;            // arrives much later
  // A stream of steps is what TCP is: in order, and whatever is lost breaks it. False: each message on its own, so that steps of one session
  // overtake each other, which the seam forbids; then an answer may fail, but what was told still has to be right.
  bool order_kept = true;
  Duration latency_min{0};
  Duration latency_max{0};
  Duration stuck_max{0};
};

// Weights of what strikes next; 0: never.
struct ChaosWeights {
  uint32_t cut = 0;              // a link, one or both directions, for a while
  uint32_t break_stream = 0;     // the stream of a link, which the next step opens again
  uint32_t crash = 0;
  uint32_t pause_worker = 0;
  uint32_t pause_gateway = 0;
  uint32_t jump_clock = 0;
  uint32_t drain = 0;
  uint32_t engine_fault = 0;     // rolled back, lost, not finite, a cut not proven
  uint32_t zombie = 0;           // an old message arrives once more
  uint32_t forge = 0;            // … with something in it changed
  uint32_t take_over = 0;        // another driver opens a session at a higher epoch: its first one is a zombie from then on
  uint32_t collide = 0;          // another driver opens a session at the same epoch, which nobody may: both may fail, none may tell a wrong token
  uint32_t gateway_death = 0;    // it says nothing more to anybody

  uint32_t sum() const {
    return cut + break_stream + crash + pause_worker + pause_gateway + jump_clock + drain + engine_fault + zombie + forge + take_over + collide +
           gateway_death;
  }
};

struct ClientHabits {
  uint32_t prompt_max = 20;
  uint32_t answer_max = 20;
  Duration think_max{0};
  uint32_t cancel = 0;           // thousandths of answers that their client cancels
  uint32_t stop = 0;             // … that its sink stops
  uint32_t leave = 0;            // … after which a client of its own session goes without a word
  uint32_t continue_talk = 0;    // … whose prompt goes on from the last answer
  uint32_t repeat_others = 0;    // … whose prompt goes on from what somebody else asked and was told
  uint32_t past_context = 0;     // … whose prompt is as long as the context, or longer
};

struct Swarm {
  FakeModel model;
  std::vector<WorkerShape> workers;   // the stages, in order
  uint32_t gateways = 1;
  uint32_t pool_clients = 1;          // of each gateway
  uint32_t own_clients = 0;           // likewise, each with sessions of its own beside the pool: nothing keeps them from evicting others
  uint32_t owners = 1;
  uint32_t answers_max = 0;
  uint32_t waiting_max = 16;
  DriverOptions driver;
  LinkTrouble link;
  ChaosWeights chaos;
  uint32_t events_between_chaos = 200;  // on average
  ClientHabits habits;
};

Swarm DrawSwarm(Random& random);
std::string Text(const Swarm& swarm);

}  // namespace meshnet::sim
