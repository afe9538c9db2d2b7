// Ctrl-Z and fg: the workers stand still where they are, and no new generation begins meanwhile. A
// stop ends a pause; a failure during one is handled, but for the next generation's start.
#include <algorithm>
#include <csignal>

#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

void SignalMembers(Turn& turn, int32_t signal) {
  v1::CoordinatorMessage message;
  message.mutable_signal_workers()->set_generation(turn.state.generation.number);
  message.mutable_signal_workers()->set_signal(signal);
  turn.SendToMembers(message);
}

// Nodes of the running generation that have not said yet that their workers stand still.
bool SomeoneMoves(Turn& turn) {
  State& s = turn.state;
  if (s.phase != Phase::kRunning) return false;
  return std::any_of(s.generation.placements.begin(), s.generation.placements.end(),
                     [&](const Placement& placement) {
                       const Node* node = turn.MemberOf(placement);
                       return node != nullptr && !node->stopped &&
                              !s.pause.paused_nodes.contains(node->name);
                     });
}

}  // namespace

void AskToPause(Turn& turn) {
  State& s = turn.state;
  if (s.pause.wanted || s.stop.requested || s.phase == Phase::kFinished) return;
  s.pause = Pause{true, false, turn.now_ns, {}};
  s.generation.examination.reset();
  if (s.phase == Phase::kRunning) SignalMembers(turn, SIGSTOP);
}

void TellPaused(Turn& turn) {
  State& s = turn.state;
  if (!s.pause.wanted || s.pause.told || s.phase == Phase::kFinished || SomeoneMoves(turn)) return;
  s.pause.told = true;
  turn.Record("job_paused", nlohmann::ordered_json::object());
}

void AskToContinue(Turn& turn) {
  State& s = turn.state;
  if (!s.pause.wanted) return;
  const int64_t paused_ns = turn.now_ns - s.pause.since_ns;
  const bool start_held = s.pause.start_held;
  s.pause = Pause{};
  s.generation.paused_ns += paused_ns;
  if (s.phase == Phase::kWaiting && s.deadline_ns != 0) s.deadline_ns += paused_ns;
  turn.Record("job_continued", {{"seconds", static_cast<double>(paused_ns) / kSecondNs}});
  if (s.phase == Phase::kRunning) SignalMembers(turn, SIGCONT);
  if (s.phase == Phase::kWaiting) MaybePlanGeneration(turn);
  ConsiderGrowth(turn);
  if (s.phase == Phase::kChoosing && start_held) {
    turn.out.push_back(ChooseResume{s.generation.number});
  }
}

void HandleWorkersSignalled(Turn& turn, const Node& node, const v1::WorkersSignalled& signalled) {
  if (signalled.signal() == SIGSTOP) turn.state.pause.paused_nodes.insert(node.name);
}

}  // namespace ddprun::coordinator
