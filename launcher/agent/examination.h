// Examination: a node's answer to ExamineWorkers. Asks the keeper for the workers' places, collects
// their stacks on a thread of its own, and asks for the places again, so that the answer tells who
// has moved meanwhile.
//
// A passive object of the agent's loop: all methods from its thread. `wake` is called from the
// other thread when there is something to take. Nothing here blocks, except that Cancel and the
// destructor wait for the tools to be killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "common/packet.h"
#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/stacks.h"

namespace ddprun::agent {

class Examination {
 public:
  explicit Examination(std::function<void()> wake);
  ~Examination();
  Examination(const Examination&) = delete;
  Examination& operator=(const Examination&) = delete;

  // Begins anew, whatever was under way.
  void Begin(uint64_t generation);
  void Cancel();
  // True: the packet was one of the keeper's answers (Places, Examined).
  bool Take(const Packet& packet);
  // True once: the keeper is to be asked (`Examine`).
  bool TakeQuestion();
  // The answer, once.
  std::optional<v1::AgentMessage> TakeAnswer();

 private:
  enum class Stage { kIdle, kPlaces, kStacks, kPlacesAgain, kDone };
  void CollectInBackground();

  std::function<void()> wake_;
  Stage stage_ = Stage::kIdle;
  bool question_ = false;
  v1::WorkersExamined answer_;
  std::vector<Stack> stacks_;  // of the thread until it is ready
  std::atomic<bool> stacks_ready_{false};
  int stop_fd_;
  std::thread thread_;
};

}  // namespace ddprun::agent
