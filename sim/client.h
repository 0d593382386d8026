// A client of a gateway: asks, listens, stops, cancels, goes away; and compares every token it is told with the undisturbed answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gateway.h"
#include "session/session_driver.h"
#include "world.h"

namespace meshnet::sim {

// How a client comes to a session.
enum class ClientKind {
  kPool,       // leases from the gateway's pool
  kOwn,        // drives sessions of its own
  kTakesOver,  // drives one session that another driver has, at a higher epoch
  kCollides,   // … at the same epoch
};

class Client {
 public:
  Client(World& world, Gateway& gateway, Gateway::Door door, ClientKind kind);
  // One that drives `session` beside or instead of another.
  Client(World& world, Gateway& gateway, Gateway::Door door, ClientKind kind, const SessionId& session);

  // Until the world is healed and it got an answer in it, or the gateway is dead. On a fiber.
  void Live();

 private:
  struct Question {
    AnswerRequest request;
    std::vector<Token> expected;     // all that could be told
    bool too_long = false;           // the prompt alone passes the context
    uint32_t stop_at = 0;            // tokens; 0: never
    std::optional<Time> cancel_at;
  };
  class Listener;

  Question Draw();
  bool AskOnce();
  bool AskPool(const Question& question, Listener& listener);
  bool AskOwn(const Question& question, Listener& listener);
  bool Drive(const Question& question, Listener& listener, DrivenSession& session);
  bool Judge(const Question& question, const Listener& listener, DrivenSession& session, std::variant<AnswerReport, AnswerFailure> result);
  bool JudgeReport(const Question& question, const Listener& listener, const AnswerReport& report);
  void JudgeFailure(const Question& question, const Listener& listener, DrivenSession& session, const AnswerFailure& failure);
  SessionKey NameSession();
  void BackOff();
  void LeaveSession();
  void Complain(const std::string& what);

  World& world_;
  Gateway& gateway_;
  const Gateway::Door door_;
  const ClientKind kind_;
  const Place place_;
  std::string owner_;
  std::unique_ptr<DrivenSession> session_;   // of its own
  SessionId taken_{};                        // kTakesOver, kCollides: which
  uint32_t generation_ = 0;                  // how often the session had been taken over when this client came to it
  uint32_t refused_ = 0;                     // times in a row that there was no room
  std::vector<Token> talk_;                  // the last prompt and what was told
};

}  // namespace meshnet::sim
