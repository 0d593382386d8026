// The gateway's log lines: one for each answer, and repeated ones folded. No line holds text, a key or a session id of a user.
#pragma once

#include <string>

#include "base/clock.h"
#include "gateway/answer_in_flight.h"

namespace meshnet::gateway {

struct RequestLine {
  std::string id;
  std::string kind;   // "chat", "completion"
  std::string owner;  // a key's name or an address
  Time begun;
};

void LogAnswer(const RequestLine& line, int status, const AnswerInFlight::Summary& summary, Time now);
// At most one line in ten seconds for each `what`; the next tells how many were left out. `what` is one of a few fixed sentences.
void LogFolded(const std::string& what, Time now);
void LogNotice(const std::string& text);

}  // namespace meshnet::gateway
