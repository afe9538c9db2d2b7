// What happened, for people: one line per event, rendered only when it is asked for.
//
// The lines are a function of the seed alone; two runs of a seed give the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::sim {

class Trace {
 public:
  explicit Trace(bool on) : on_(on) {}
  bool on() const { return on_; }
  // `number` counts the events of the job.
  void Line(int64_t now_ns, uint64_t number, std::string_view who, std::string_view what);
  const std::string& text() const { return text_; }

 private:
  bool on_;
  std::string text_;
};

std::string Describe(const v1::AgentMessage& message);
std::string Describe(const v1::CoordinatorMessage& message);

}  // namespace ddprun::sim
