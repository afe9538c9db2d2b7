// What a node does before the workers of a generation start: a list of steps, one after the other
// (memory of dead workers given back, health check).
//
// A passive object: the agent's loop polls the descriptors, and calls Advance when one of them is
// readable or a deadline has passed. Nothing here blocks or runs on a thread of its own. All times
// are the agent's clock (lease_clock.h) in nanoseconds. Invariants:
//  1. A step begins when the one before it is ready.
//  2. After Cancel no step begins, and the preparation is over once nothing of the running step is
//     left.
//  3. What a destroyed step had started is gone.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::agent {

struct PreparationResult {
  enum class State {
    kWorking,
    kReady,   // the next step may begin; `text`, if any, is one line for the console
    kFailed,  // the workers must not start here; `text` says why
  };
  State state = State::kWorking;
  std::string text;
  std::string unreachable_address{};  // of another node, where that is what failed
};

class PreparationStep {
 public:
  virtual ~PreparationStep() = default;
  // Begins with the first call; each one goes on as far as it can without waiting.
  virtual PreparationResult Advance(int64_t now_ns) = 0;
  // Ends what was begun. Advance is called until it says something else than kWorking.
  virtual void Cancel() = 0;
  // Descriptors that call for Advance.
  virtual void AddPolls(std::vector<pollfd>* polls) const { static_cast<void>(polls); }
  // When Advance is due even if no descriptor calls; 0: never.
  virtual int64_t NextDeadlineNs() const { return 0; }
  // Processes of it that could not be killed.
  virtual std::vector<int32_t> UnkillablePids() const { return {}; }
};

class Preparation {
 public:
  void Add(std::unique_ptr<PreparationStep> step) { steps_.push_back(std::move(step)); }

  // Once it has said kReady or kFailed it is over. After Cancel it ends with kFailed.
  PreparationResult Advance(int64_t now_ns);
  void Cancel();
  void AddPolls(std::vector<pollfd>* polls) const;
  int64_t NextDeadlineNs() const;
  const std::vector<int32_t>& unkillable_pids() const { return unkillable_; }
  // Lines of the steps that are over.
  std::vector<std::string> TakeLines();

 private:
  bool cancelled_ = false;
  bool begun_ = false;                                   // the first of steps_ has been called
  std::vector<std::unique_ptr<PreparationStep>> steps_;  // the first is the running one
  std::vector<int32_t> unkillable_;
  std::vector<std::string> lines_;
};

}  // namespace ddprun::agent
