// The core of an agent, driven by hand: events go in, effects lie in `effects_`.
//
// The coordinator of its tests numbers its messages as a real one does. Single-threaded.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "common/reliable_link.h"
#include "launcher/agent/core.h"

namespace ddprun::agent {

constexpr int64_t kSecondNs = 1'000'000'000;

class CoreAgent : public testing::Test {
 protected:
  void Do(const Event& event) { effects_ = Step(state_, event, now_ns_); }
  // As the coordinator of that link would number it.
  void Hear(v1::CoordinatorMessage message) {
    if (!message.has_welcome() && !message.has_heartbeat_answer()) message = link_.Send(message);
    Do(CoordinatorSaid{message, 0, 0});
  }
  void Welcome(uint64_t link = 1, double lease_seconds = 3) {
    v1::CoordinatorMessage message;
    auto* welcome = message.mutable_welcome();
    welcome->set_job_id("job");
    welcome->set_leader_token("token");
    welcome->set_lease_seconds(lease_seconds);
    welcome->set_heartbeat_seconds(lease_seconds / 4);
    welcome->set_link(link);
    if (link != state_.link_number) link_ = ReliableLink<v1::CoordinatorMessage>();
    Hear(message);
  }
  void Answer(uint64_t sequence) {
    v1::CoordinatorMessage message;
    message.mutable_heartbeat_answer()->set_sequence(sequence);
    Hear(message);
  }
  void Attach(uint64_t link = 1) {
    Do(Connected{});
    Welcome(link);
    Answer(state_.heartbeat_sequence);
  }
  static v1::CoordinatorMessage StartOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_start_workers()->set_generation(generation);
    message.mutable_start_workers()->set_local_world_size(1);
    return message;
  }
  static v1::CoordinatorMessage StopOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_stop_workers()->set_generation(generation);
    message.mutable_stop_workers()->set_mode(v1::StopWorkers::ABORT);
    return message;
  }
  static v1::CoordinatorMessage ValueOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_value()->set_generation(generation);
    return message;
  }
  static v1::AgentMessage StartedFact(uint64_t generation) {
    v1::AgentMessage fact;
    fact.mutable_worker_started()->set_generation(generation);
    return fact;
  }
  template <typename T>
  int Count() const {
    return static_cast<int>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& e) {
      return std::holds_alternative<T>(e);
    }));
  }
  template <typename T>
  const T& Only() const {
    static const T kNone{};
    EXPECT_EQ(Count<T>(), 1);
    for (const Effect& effect : effects_) {
      if (const T* found = std::get_if<T>(&effect)) return *found;
    }
    return kNone;
  }
  // Facts, without heartbeats.
  int CountFacts() const {
    return static_cast<int>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& e) {
      const SendUp* up = std::get_if<SendUp>(&e);
      return up != nullptr && up->message.sequence() != 0;
    }));
  }

  State state_;
  int64_t now_ns_ = 100 * kSecondNs;
  std::vector<Effect> effects_;
  ReliableLink<v1::CoordinatorMessage> link_;
};

}  // namespace ddprun::agent
