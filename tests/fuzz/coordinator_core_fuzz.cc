// libFuzzer target: a node that knows the secret and has gone mad. Whatever its agent says, the
// coordinator's core takes it without a crash, its deadlines stay sane, and the world stays whole.
#include <cstdint>
#include <cstdlib>

#include "launcher/coordinator/core.h"
#include "tests/fuzz/fill_message.h"

namespace ddprun::coordinator {
namespace {

constexpr int kMessagesMax = 100;

class World {
 public:
  World() {
    JobSubmitted job;
    job.spec.set_job_id("job1");
    job.spec.set_run_dir("/run");
    job.spec.add_program("program");
    job.spec.set_processes_per_node(2);
    job.spec.set_nodes_min(1);
    job.spec.set_nodes_max(2);
    job.spec.set_lease_seconds(3);
    job.spec.set_grace_seconds(10);
    job.spec.set_join_timeout_seconds(60);
    job.leader_token = "leader";
    Do(job);
    for (const char* node : {"node0", "node1"}) {
      v1::AgentMessage message;
      v1::Hello* hello = message.mutable_hello();
      hello->set_protocol_version(1);
      hello->set_node(node);
      hello->set_incarnation("one");
      hello->set_slots(2);
      hello->set_node_rank_wanted(-1);
      hello->set_address(node == std::string("node0") ? "10.0.0.1" : "10.0.0.2");
      Do(NodeMessage{node, "one", message});
    }
  }

  void Do(const Event& event) {
    std::vector<Event> next = {event};
    for (int round = 0; !next.empty() && round < 50; ++round) {
      std::vector<Event> answers;
      for (const Event& one : next) {
        for (const Effect& effect : Step(state_, one, now_ns_)) {
          if (const auto* e = std::get_if<ChooseResume>(&effect)) {
            ResumeChosen chosen;
            chosen.generation = e->generation;
            answers.emplace_back(chosen);
          }
          if (const auto* e = std::get_if<CommitCheckpoint>(&effect)) {
            answers.emplace_back(CheckpointStored{e->generation, e->step, true, "/run/c", ""});
          }
          if (const auto* e = std::get_if<SendToNode>(&effect)) {
            if (!e->message.SerializePartialAsString().empty()) ++sent_;
          }
          if (const auto* e = std::get_if<RecordEvent>(&effect)) {
            e->event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
          }
        }
      }
      next = std::move(answers);
    }
    if (NextDeadlineNs(state_) < 0) std::abort();
    uint32_t ranks = 0;
    for (const Placement& placement : state_.generation.placements) {
      if (placement.first_rank != ranks) std::abort();
      ranks += placement.count;
    }
    if (state_.generation.workers.size() != ranks) std::abort();
  }

  void Say(FuzzedDataProvider& data) {
    const std::string node = data.ConsumeBool() ? "node0" : "node1";
    v1::AgentMessage message;
    fuzz::Fill(&message, data);
    if (message.has_hello() || message.has_answer()) return;  // the handshake's alone
    auto found = state_.nodes.find(node);
    if (found != state_.nodes.end() && data.ConsumeIntegralInRange(0, 7) != 0) {
      message.set_sequence(found->second.link.last_received() + 1);
    }
    Do(NodeMessage{node, "one", message});
  }

  void Pass(int64_t ns) {
    now_ns_ += ns;
    Do(TimePassed{});
  }

 private:
  State state_;
  int64_t now_ns_ = 1'000'000'000;
  uint64_t sent_ = 0;
};

}  // namespace
}  // namespace ddprun::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  ddprun::coordinator::World world;
  for (int i = 0; i < ddprun::coordinator::kMessagesMax && data.remaining_bytes() > 0; ++i) {
    if (data.ConsumeIntegralInRange(0, 3) == 0) {
      world.Pass(data.ConsumeIntegralInRange<int64_t>(0, 5'000'000'000));
    } else {
      world.Say(data);
    }
  }
  return 0;
}
