// How a node leaves while the job goes on: with a checkpoint, or at once. The job's end wins over
// leaving.
#include "absl/strings/str_cat.h"
#include "launcher/agent/core_turn.h"

namespace ddprun::agent {
namespace {

// After the grace of the workers themselves: two rounds of messages, and a commit to a slow disk.
constexpr int64_t kReleaseMarginNs = 10 * kSecondNs;
constexpr double kGraceSecondsDefault = 30;
// The coordinator may have let this node in already, and count on it: its Welcome is on the way.
constexpr int64_t kWelcomeNs = 2 * kSecondNs;

double GraceSeconds(const State& state) {
  if (state.running && state.running->order.spec().grace_seconds() > 0) {
    return state.running->order.spec().grace_seconds();
  }
  return kGraceSecondsDefault;
}

int64_t ReleaseDeadlineNs(const Turn& turn) {
  return turn.now_ns + static_cast<int64_t>(GraceSeconds(turn.state) * kSecondNs) +
         kReleaseMarginNs;
}

}  // namespace

void StopRunning(Turn& turn, v1::StopWorkers::Mode mode, const std::string& reason) {
  if (!turn.state.running) return;
  turn.state.running->stopping = true;
  v1::StopWorkers order;
  order.set_generation(turn.state.running->number);
  order.set_mode(mode);
  order.set_reason(reason);
  turn.out.push_back(OrderKeeper{order});
}

void SayLeaving(Turn& turn) {
  v1::AgentMessage message;
  message.mutable_leaving()->set_reason(turn.state.leave_reason);
  message.mutable_leaving()->set_planned(turn.state.leave == Leave::kPlanned);
  turn.Fact(std::move(message));
}

void EndLeaving(Turn& turn) {
  State& s = turn.state;
  s.leave = Leave::kAtOnce;
  if (s.attached) SayLeaving(turn);
  turn.Finish({kExitCoordinatorLost, s.leave_reason, /*left=*/true});
}

void LeaveAtOnce(Turn& turn) {
  State& s = turn.state;
  s.leave = Leave::kAtOnce;
  s.leave_deadline_ns = 0;
  s.pending.reset();
  if (!s.running) return EndLeaving(turn);
  StopRunning(turn, v1::StopWorkers::KILL, absl::StrCat("this node leaves: ", s.leave_reason));
}

void HandleLeaveAsked(Turn& turn, const LeaveAsked& asked) {
  State& s = turn.state;
  if (s.job_over) return;  // its workers are being killed already
  const bool again = s.leave != Leave::kStays;
  if (!again) s.leave_reason = asked.reason;
  // Where nobody can be asked for a checkpoint, waiting for one would help nobody.
  const bool alone = !s.attached && s.running && s.lease_seconds == 0;
  if (asked.now || again || alone) return LeaveAtOnce(turn);
  s.leave = Leave::kPlanned;
  const bool waits = !s.attached && !s.running;
  s.leave_deadline_ns = waits ? turn.now_ns + kWelcomeNs : ReleaseDeadlineNs(turn);
  SayLeaving(turn);
}

void LeaveAfterWelcome(Turn& turn) {
  if (turn.state.leave != Leave::kPlanned) return;
  if (!turn.state.running) turn.state.leave_deadline_ns = ReleaseDeadlineNs(turn);
}

void HandleJobEnded(Turn& turn, const v1::JobEnded& ended) {
  turn.state.job_over = true;
  turn.state.job_exit_code = ended.exit_code();
  turn.state.pending.reset();
  if (turn.state.running) return StopRunning(turn, v1::StopWorkers::KILL, "the job is over");
  turn.Finish({ended.exit_code(), "the job is over"});
}

void HandleReleased(Turn& turn, const v1::Released& released) {
  State& s = turn.state;
  if (s.leave_reason.empty()) s.leave_reason = released.reason();
  // It comes when nothing runs here; should something all the same, it is killed first.
  if (s.running || s.pending) return LeaveAtOnce(turn);
  turn.Finish({kExitCoordinatorLost, s.leave_reason, /*left=*/true});
}

}  // namespace ddprun::agent
