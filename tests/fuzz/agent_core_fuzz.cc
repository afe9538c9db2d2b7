// libFuzzer target: a coordinator that has gone mad. Whatever it says, the agent's core takes it
// without a crash, and holds one generation at most.
#include <cstdint>
#include <cstdlib>

#include "launcher/agent/core.h"
#include "tests/fuzz/fill_message.h"

namespace ddprun::agent {
namespace {

constexpr int kMessagesMax = 100;

class Node {
 public:
  Node() {
    state_.identity.node = "node0";
    state_.identity.incarnation = "one";
    state_.identity.slots = 2;
    Do(Connected{1});
    v1::CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_job_id("job1");
    welcome.mutable_welcome()->set_leader_token("leader");
    welcome.mutable_welcome()->set_link(1);
    Hear(welcome);
    v1::CoordinatorMessage start;
    start.mutable_start_workers()->set_generation(1);
    start.mutable_start_workers()->set_local_world_size(2);
    start.mutable_start_workers()->set_world_size(2);
    start.set_sequence(1);
    Hear(start);
  }

  void Hear(const v1::CoordinatorMessage& message) { Do(CoordinatorSaid{message, 0, 0, 1}); }

  void Do(const Event& event) {
    uint64_t spawned = 0;
    for (const Effect& effect : Step(state_, event, now_ns_)) {
      if (const auto* e = std::get_if<SpawnKeeper>(&effect)) spawned = e->order.generation();
    }
    // One that is started is the one that runs.
    if (spawned != 0 && (!state_.running || state_.running->number != spawned)) std::abort();
    if (NextDeadlineNs(state_) < 0) std::abort();
  }

  void Say(FuzzedDataProvider& data) {
    v1::CoordinatorMessage message;
    fuzz::Fill(&message, data);
    if (data.ConsumeIntegralInRange(0, 7) != 0) {
      message.set_sequence(state_.link.last_received() + 1);
    }
    Hear(message);
  }

  void KeeperEnds() {
    if (!state_.running) return;
    KeeperGone gone;
    gone.generation = state_.running->number;
    Do(gone);
  }

  void Pass(int64_t ns) {
    now_ns_ += ns;
    Do(TimePassed{});
  }

 private:
  State state_;
  int64_t now_ns_ = 1'000'000'000;
};

}  // namespace
}  // namespace ddprun::agent

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  ddprun::agent::Node node;
  for (int i = 0; i < ddprun::agent::kMessagesMax && data.remaining_bytes() > 0; ++i) {
    switch (data.ConsumeIntegralInRange(0, 7)) {
      case 0:
        node.Pass(data.ConsumeIntegralInRange<int64_t>(0, 5'000'000'000));
        break;
      case 1:
        node.KeeperEnds();
        break;
      default:
        node.Say(data);
    }
  }
  return 0;
}
