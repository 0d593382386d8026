#include "swarm.h"

#include <algorithm>

namespace meshnet::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// 0 in about half of all worlds.
uint32_t Rate(Random& random, uint32_t max) { return random.Coin() ? 0 : random.Between(1, max); }

FakeModel DrawModel(Random& random) {
  FakeModel model;
  model.layer_count = random.Between(1, 5);
  model.width = random.Pick({1u, 2u, 4u});
  model.vocabulary_size = random.Pick({40u, 1000u, 32000u});
  if (random.Coin()) {
    model.end_of_generation_tokens = {static_cast<Token>(random.Below(model.vocabulary_size))};
    model.answer_tokens = random.Coin() ? random.Between(1, 30) : 0;
  }
  return model;
}

std::vector<LayerRange> DrawRanges(Random& random, uint32_t layer_count) {
  const uint32_t stages = std::min(layer_count, random.Pick({1u, 2u, 2u, 3u, 3u, 4u}));
  std::vector<LayerRange> ranges;
  uint32_t begin = 0;
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const uint32_t left = stages - stage - 1;
    const uint32_t end = left == 0 ? layer_count : random.Between(begin + 1, layer_count - left);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<WorkerShape> DrawWorkers(Random& random, uint32_t layer_count) {
  const uint32_t context = random.Pick({16u, 24u, 40u, 64u, 100u});
  const bool equal_classes = random.Coin();
  const TruncationClass one_class = random.Pick({TruncationClass::kFull, TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole});
  const bool slow = random.Chance(200);
  std::vector<WorkerShape> workers;
  for (const LayerRange& range : DrawRanges(random, layer_count)) {
    WorkerShape worker;
    worker.range = range;
    worker.truncation_class = equal_classes ? one_class : random.Pick({TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole});
    worker.window_tokens = worker.truncation_class == TruncationClass::kWindow ? random.Between(1, 16) : 0;
    worker.window_slack_tokens = random.Between(0, 8);
    worker.sessions_max = random.Between(1, 5);
    worker.context_tokens = random.Chance(800) ? context : random.Between(16, context);
    worker.budget_tokens = worker.context_tokens * random.Between(1, 4);
    worker.budget_tokens += random.Below(worker.context_tokens);
    worker.chunk_rows_max = random.Pick({1u, 2u, 5u, 8u, 32u});
    worker.ttl_seconds = random.Pick({1u, 2u, 5u, 20u, 600u});
    worker.row_time = random.Between(microseconds(slow ? 2000 : 20), microseconds(slow ? 20000 : 500));
    worker.load_time = random.Between(milliseconds(1), milliseconds(2000));
    workers.push_back(worker);
  }
  return workers;
}

LinkTrouble DrawLink(Random& random) {
  LinkTrouble link;
  if (random.Chance(700)) {
    const uint32_t most = random.Pick({5u, 20u, 60u});
    link.lose_request = Rate(random, most);
    link.lose_reply = Rate(random, most);
    link.repeat = Rate(random, most * 2);
    link.stick = Rate(random, most);
  }
  link.known_loss = random.Pick({0u, 500u, 1000u});
  link.order_kept = random.Chance(850);
  link.latency_min = microseconds(random.Between(10, 1000));
  link.latency_max = link.latency_min + microseconds(random.Pick({10u, 500u, 20000u}));
  link.stuck_max = random.Pick<Duration>({milliseconds(50), seconds(2), seconds(60)});
  return link;
}

ChaosWeights DrawChaos(Random& random) {
  ChaosWeights chaos;
  chaos.cut = Rate(random, 3);
  chaos.break_stream = Rate(random, 3);
  chaos.crash = Rate(random, 3);
  chaos.pause_worker = Rate(random, 2);
  chaos.pause_gateway = Rate(random, 2);
  chaos.jump_clock = Rate(random, 2);
  chaos.drain = Rate(random, 2);
  chaos.engine_fault = Rate(random, 6);
  chaos.zombie = Rate(random, 10);
  chaos.take_over = Rate(random, 3);
  chaos.collide = random.Chance(200) ? random.Between(1, 3) : 0;
  chaos.forge = random.Chance(200) ? random.Between(1, 20) : 0;
  chaos.gateway_death = random.Chance(250) ? 1 : 0;
  return chaos;
}

DriverOptions DrawDriver(Random& random) {
  DriverOptions driver;
  driver.pipelined_chunks = random.Below(5);
  driver.chunk_rows = random.Coin() ? 0 : random.Between(1, 8);
  driver.step_timeout = random.Between(milliseconds(300), seconds(6));
  driver.recovery_limit = driver.step_timeout * random.Between(2, 8);
  return driver;
}

ClientHabits DrawHabits(Random& random, uint32_t context) {
  ClientHabits habits;
  habits.prompt_max = random.Between(1, std::max(2u, context * 3 / 4));
  habits.answer_max = random.Between(1, 30);
  habits.think_max = random.Pick<Duration>({milliseconds(1), milliseconds(200), seconds(4), seconds(30)});
  habits.cancel = Rate(random, 300);
  habits.stop = Rate(random, 200);
  habits.leave = Rate(random, 300);
  habits.continue_talk = random.Pick({0u, 500u, 900u});
  habits.repeat_others = random.Pick({0u, 0u, 200u});
  habits.past_context = random.Coin() ? 0 : 30;
  return habits;
}

}  // namespace

Swarm DrawSwarm(Random& random) {
  Swarm swarm;
  swarm.model = DrawModel(random);
  swarm.workers = DrawWorkers(random, swarm.model.layer_count);
  swarm.gateways = random.Pick({1u, 1u, 2u, 3u});
  swarm.pool_clients = random.Between(0, 3);
  swarm.own_clients = random.Between(swarm.pool_clients == 0 ? 1 : 0, 2);
  swarm.owners = random.Between(1, 3);
  swarm.answers_max = random.Coin() ? 0 : random.Between(1, 3);
  swarm.waiting_max = random.Pick({0u, 1u, 16u});
  swarm.driver = DrawDriver(random);
  swarm.link = DrawLink(random);
  swarm.chaos = DrawChaos(random);
  swarm.events_between_chaos = random.Pick({30u, 100u, 300u, 1000u});
  uint32_t context = swarm.workers.front().context_tokens;
  for (const WorkerShape& worker : swarm.workers) context = std::min(context, worker.context_tokens);
  swarm.habits = DrawHabits(random, context);
  return swarm;
}

std::string Text(const Swarm& swarm) {
  const auto number = [](auto value) { return std::to_string(value); };
  const auto ms = [](Duration duration) { return std::to_string(std::chrono::duration_cast<microseconds>(duration).count()) + "us"; };
  std::string text = "model: " + number(swarm.model.layer_count) + " layers, vocabulary " + number(swarm.model.vocabulary_size) + "\n";
  for (const WorkerShape& worker : swarm.workers) {
    text += "worker " + worker.range.Text() + " " + Name(worker.truncation_class) + " window " + number(worker.window_tokens) + "+" +
            number(worker.window_slack_tokens) + ", sessions " + number(worker.sessions_max) + ", context " + number(worker.context_tokens) +
            ", budget " + number(worker.budget_tokens) + ", chunk " + number(worker.chunk_rows_max) + ", ttl " + number(worker.ttl_seconds) +
            "s, row " + ms(worker.row_time) + "\n";
  }
  text += number(swarm.gateways) + " gateways of " + number(swarm.pool_clients) + " + " + number(swarm.own_clients) + " clients, " +
          number(swarm.owners) + " owners, answers " + number(swarm.answers_max) + ", line " + number(swarm.waiting_max) + "\n";
  text += "driver: " + number(swarm.driver.pipelined_chunks) + " chunks of " + number(swarm.driver.chunk_rows) + ", step timeout " +
          ms(swarm.driver.step_timeout) + ", recovery " + ms(swarm.driver.recovery_limit) + "\n";
  const LinkTrouble& link = swarm.link;
  text += "link: lose " + number(link.lose_request) + "/" + number(link.lose_reply) + " (known " + number(link.known_loss) + "), repeat " +
          number(link.repeat) + ", stick " + number(link.stick) + " up to " + ms(link.stuck_max) + (link.order_kept ? "" : ", out of order") +
          ", latency " + ms(link.latency_min) + ".." + ms(link.latency_max) + "\n";
  const ChaosWeights& chaos = swarm.chaos;
  text += "chaos every " + number(swarm.events_between_chaos) + " events: cut " + number(chaos.cut) + " stream " + number(chaos.break_stream) +
          " crash " + number(chaos.crash) + " pause " + number(chaos.pause_worker) + "/" + number(chaos.pause_gateway) + " jump " +
          number(chaos.jump_clock) + " drain " + number(chaos.drain) + " engine " + number(chaos.engine_fault) + " zombie " +
          number(chaos.zombie) + " forge " + number(chaos.forge) + " takeover " + number(chaos.take_over) + " collision " + number(chaos.collide) + " death " + number(chaos.gateway_death) + "\n";
  const ClientHabits& habits = swarm.habits;
  text += "clients: prompt " + number(habits.prompt_max) + ", answer " + number(habits.answer_max) + ", think " + ms(habits.think_max) +
          ", cancel " + number(habits.cancel) + ", stop " + number(habits.stop) + ", leave " + number(habits.leave) + ", continue " +
          number(habits.continue_talk) + ", of others " + number(habits.repeat_others) + ", past context " + number(habits.past_context) + "\n";
  return text;
}

}  // namespace meshnet::sim
