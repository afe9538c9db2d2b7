// What is due by time: joins, back-off, leases, a stop's grace, start-up, the time limit,
// cool-downs.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

constexpr int32_t kExitTimeLimit = 124;
constexpr int32_t kExitNodesMissing = 3;
constexpr int32_t kExitNodeLost = 4;
constexpr size_t kNamesMax = 16;  // in the text of a job's end

std::string Names(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kNamesMax) names.resize(kNamesMax);
  std::string text = absl::StrJoin(names, ", ");
  if (all > kNamesMax) absl::StrAppend(&text, " and ", all - kNamesMax, " more");
  return text;
}

constexpr size_t kNamedWaitersMax = 64;

struct Roll {
  std::vector<std::string> here;
  std::vector<std::string> missing;  // as far as names are known beforehand
};

Roll CallRoll(const State& state) {
  Roll roll;
  const std::set<std::string> out = LeftOut(state);
  for (const auto& [name, node] : state.nodes) {
    if (MayTakePart(node) && !out.contains(name)) roll.here.push_back(name);
  }
  for (const std::string& name : state.spec.membership().expected_nodes()) {
    if (std::find(roll.here.begin(), roll.here.end(), name) == roll.here.end()) {
      roll.missing.push_back(name);
    }
  }
  return roll;
}

std::string NamesOf(const Roll& roll) {
  return absl::StrCat(roll.here.empty() ? "" : absl::StrCat(": ", Names(roll.here)),
                      roll.missing.empty() ? "" : absl::StrCat("; missing: ", Names(roll.missing)));
}

// L39: how many came, who, and who is missing as far as that is known.
std::string MissingText(const State& state) {
  const Roll roll = CallRoll(state);
  const std::string count =
      absl::StrCat(roll.here.size(), " of ", state.spec.nodes_min(), " nodes ");
  const std::string away =
      state.sent_away.empty() ? "" : absl::StrCat("; sent away: ", state.sent_away);
  if (state.no_more_nodes) {
    return absl::StrCat(count, state.ever_complete ? "are left" : "came", NamesOf(roll),
                        ", and no more can come", away);
  }
  return absl::StrCat(count, state.ever_complete ? "were here" : "came", " within ",
                      state.spec.join_timeout_seconds(), " s",
                      state.ever_complete ? " after the last generation" : "", NamesOf(roll),
                      " (--join-timeout)", away);
}

// When this run of ddprun has to stop; 0: never, or it stops already.
int64_t TimeLimitNs(const State& state) {
  if (state.spec.time_limit_seconds() <= 0 || state.stop.requested) return 0;
  return state.started_ns + static_cast<int64_t>(state.spec.time_limit_seconds() * kSecondNs);
}

// By when every rank has to be ready; 0: no such deadline. Our trainer's ranks say Ready, and a
// program's as soon as one of them did.
int64_t InitDeadlineNs(const State& state) {
  const double seconds = state.spec.supervision().init_timeout_seconds();
  const Generation& g = state.generation;
  if (seconds <= 0 || state.phase != Phase::kRunning || state.pause.wanted) return 0;
  if (g.examination && g.examination->for_init) return 0;  // it has passed
  const bool trainer = !state.spec.train_config_json().empty();
  const int64_t from_ns = trainer ? g.started_ns : g.first_ready_ns;
  if (from_ns == 0 || g.ready_or_exited == g.workers.size()) return 0;
  return from_ns + g.paused_ns + static_cast<int64_t>(seconds * kSecondNs);
}

int64_t AwaitCauseNs(const State& state) {
  return state.phase == Phase::kRunning ? state.generation.await_cause_until_ns : 0;
}

void LetNodesIn(Turn& turn) {
  const std::vector<std::string> names = LetIn(turn.state);
  for (const std::string& name : names) turn.Record("node_let_in", {{"node", name}});
  if (names.empty()) return;
  MaybePlanGeneration(turn);
  ConsiderGrowth(turn);
}

void ReachTimeLimit(Turn& turn) {
  State& s = turn.state;
  s.stop.exit_code = kExitTimeLimit;
  s.stop.reason = absl::StrCat("the time limit of ", s.spec.time_limit_seconds(), " s is reached");
  AskToStop(turn, {v1::ControlRequest::STOP, 0});
}

// Nodes need not come in time while everything stands still.
bool WaitsPaused(const State& state) {
  return state.pause.wanted && state.phase == Phase::kWaiting;
}

}  // namespace

std::string WaitingText(const State& state) {
  if (state.phase != Phase::kWaiting || state.spec.nodes_max() < 2) return "";
  // Every heartbeat is answered with it: with many nodes, their number alone.
  if (state.nodes.size() > kNamedWaitersMax) {
    return absl::StrCat(state.nodes.size(), " of ", state.spec.nodes_max(), " nodes are here");
  }
  const Roll roll = CallRoll(state);
  return absl::StrCat(roll.here.size(), " of ", state.spec.nodes_max(), " nodes are here",
                      NamesOf(roll));
}

void HandleTime(Turn& turn) {
  State& s = turn.state;
  LoseSilentNodes(turn);
  LetNodesIn(turn);
  TellTallies(turn);
  GrowIfDue(turn);
  const int64_t limit_ns = TimeLimitNs(s);
  if (limit_ns != 0 && turn.now_ns >= limit_ns) ReachTimeLimit(turn);
  const int64_t await_ns = AwaitCauseNs(s);
  if (await_ns != 0 && turn.now_ns >= await_ns) EndForLostPeers(turn);
  const int64_t init_ns = InitDeadlineNs(s);
  if (init_ns != 0 && turn.now_ns >= init_ns) ExamineForInitTimeout(turn);
  const auto& examination = s.generation.examination;
  if (examination && turn.now_ns >= examination->deadline_ns) ConcludeExamination(turn);
  if (s.stop_deadline_ns != 0 && turn.now_ns >= s.stop_deadline_ns) {
    s.stop_deadline_ns = 0;
    if (s.phase == Phase::kRunning) {
      EndGeneration(turn, false, "the grace for a checkpoint is over", v1::StopWorkers::KILL);
    }
  }
  const bool call = s.last_call_ns != 0 && turn.now_ns >= s.last_call_ns;
  const bool over = s.not_before_ns != 0 && turn.now_ns >= s.not_before_ns;
  if (over) s.not_before_ns = 0;
  if (s.phase == Phase::kWaiting && (call || over)) MaybePlanGeneration(turn);
  if (s.deadline_ns == 0 || turn.now_ns < s.deadline_ns || WaitsPaused(s)) return;
  switch (s.phase) {
    case Phase::kWaiting:
      s.deadline_ns = 0;
      MaybePlanGeneration(turn, /*late=*/true);  // enough may be here, and only others are missing
      if (s.phase != Phase::kWaiting) return;
      return Finish(turn, {.status = "failed",
                           .exit_code = s.ever_complete ? kExitNodeLost : kExitNodesMissing,
                           .failure_kind = s.ever_complete ? "node_lost" : "nodes_missing",
                           .reason = MissingText(s)});
    case Phase::kBackingOff:
      return WaitForNodes(turn);
    case Phase::kChoosing:
    case Phase::kRunning:
    case Phase::kStopping:
    case Phase::kFinished:
      return;
  }
}

int64_t NextDeadlineNs(const State& state) {
  if (state.phase == Phase::kFinished) return 0;
  int64_t next = 0;
  auto consider = [&next](int64_t when) {
    if (when != 0 && (next == 0 || when < next)) next = when;
  };
  if (!WaitsPaused(state)) consider(state.deadline_ns);
  if (state.generation.examination) consider(state.generation.examination->deadline_ns);
  consider(state.stop_deadline_ns);
  consider(TimeLimitNs(state));
  consider(AwaitCauseNs(state));
  consider(InitDeadlineNs(state));
  consider(NextLetInNs(state));
  if (state.phase == Phase::kWaiting) {
    if (!WaitsPaused(state)) consider(state.last_call_ns);
    consider(state.not_before_ns);
  }
  consider(state.silence_ns);
  consider(state.grow_ns);
  consider(NextTallyNs(state));
  return next;
}

}  // namespace ddprun::coordinator
