// A stream of steps over a link, as the core knows it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "link.h"
#include "worker/answer_sink.h"

namespace meshnet::sim {

// Where the core sends the answers to the steps of one stream.
class Link::Stream : public StepAnswerSink {
 public:
  Stream(Link& link, uint64_t number) : link_(link), number_(number) {}
  void OnAnswers(std::vector<StepAnswer> answers) override { link_.AnswerSteps(number_, std::move(answers)); }
  uint64_t number() const { return number_; }

 private:
  Link& link_;
  const uint64_t number_;
};

}  // namespace meshnet::sim
