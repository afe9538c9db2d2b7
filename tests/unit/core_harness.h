// Drives the coordinator's core by hand: a job of a few nodes whose messages arrive at once and in
// order.
//
// Each step is one call; what came out lies in `events`, `sent` and `outcome`. The shell's parts
// (checkpoint I/O) are answered by the test. Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/reliable_link.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

class CoreHarness {
 public:
  // Two ranks on each of `nodes` nodes, three restarts, a lease of 3 s. Change `spec` before
  // Submit.
  explicit CoreHarness(uint32_t nodes = 2);

  v1::JobSpec spec;
  Past past;
  State state;
  int64_t now_ns = kSecondNs;
  std::vector<nlohmann::ordered_json> events;
  std::vector<std::pair<std::string, v1::CoordinatorMessage>> sent;
  std::optional<Outcome> outcome;
  std::optional<uint64_t> choosing;  // generation whose resume step is asked for
  std::optional<CommitCheckpoint> committing;
  int dropped_stagings = 0;

  void Submit();
  // `runs`: a generation in its inventory, which an earlier coordinator ordered; 0: none.
  void Join(const std::string& node, const std::string& incarnation = "1", uint64_t runs = 0);
  // What a node says when it attaches, to be changed; and its attaching with it.
  static v1::Hello HelloOf(const std::string& node, const std::string& incarnation = "1");
  void JoinWith(const v1::Hello& hello);
  void Detach(const std::string& node);
  void Leave(const std::string& node, bool planned = true);
  void RefuseAtTheDoor(const JoinRefused& refused);
  // The last refusal that this node got; none: kind KIND_UNSPECIFIED.
  v1::Refusal RefusalOf(const std::string& node) const;
  std::vector<std::string> Members() const;  // by group rank
  // Every rank has named this step, writes its checkpoint and ends with 0; then nothing is left.
  void StopWithCheckpoint(uint64_t step);
  // Numbers the message as the node's agent would.
  void Say(const std::string& node, v1::AgentMessage message);
  // The resume step that was asked for is found.
  void Choose(uint64_t step = 0, std::vector<RejectedCheckpoint> rejected = {});
  void Stored(bool ok);
  void Ask(v1::ControlRequest::Action action, int32_t signal = 0);
  // Time passes, with heartbeats of the attached nodes; every deadline on the way is met.
  void Pass(double seconds);
  // The same without heartbeats of these nodes.
  void PassSilently(double seconds, const std::vector<std::string>& silent);

  // ---- shorter
  void Start();     // Submit, all nodes, Choose: a generation runs
  void ReadyAll();  // every rank
  void Progress(uint64_t step);
  void Fail(uint32_t rank, v1::WorkerFailed::Kind kind, int64_t time_ns = 0);
  void Exit(uint32_t rank, int32_t code, int32_t signal = 0, bool by_order = false,
            int64_t time_ns = 0);
  void Edge(uint32_t rank, uint64_t step);  // answers the agreement that is under way
  void Checkpoint(uint32_t rank, uint64_t step, v1::CheckpointFact::What what);
  void StopNode(const std::string& node);
  void StopAll();  // nothing is left on any node of the generation
  // Rank 1 is killed, the rest is ended by order, and nothing is left.
  void FailGeneration(uint32_t rank = 1);

  std::string NodeOf(uint32_t rank) const { return state.generation.workers.at(rank).node; }
  // The newest event of that name; null when there is none.
  nlohmann::ordered_json Event(const std::string& name) const;
  int Count(const std::string& name) const;
  // Messages to this node since the last Clear, of one kind.
  int CountSent(const std::string& node, v1::CoordinatorMessage::MessageCase kind) const;
  const v1::CoordinatorMessage* LastSent(const std::string& node,
                                         v1::CoordinatorMessage::MessageCase kind) const;
  void Clear() {
    events.clear();
    sent.clear();
  }

 private:
  void Do(const coordinator::Event& event);

  struct Agent {
    std::string incarnation;
    ReliableLink<v1::AgentMessage> link;
    bool attached = false;
  };
  std::map<std::string, Agent> agents_;
  uint32_t nodes_;
};

}  // namespace ddprun::coordinator
