#include "launcher/coordinator/failure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/unreachable.h"

namespace ddprun::coordinator {
namespace {

// What the built-in trainer itself says where it finds no memory; a kill leaves it no time.
constexpr char kMemoryAdvice[] =
    "; `ddprun plan` shows how much memory the training takes: a smaller data.batch_size (with as "
    "much more train.accumulation_steps), precision.recompute = \"blocks\" or precision.amp = "
    "\"bf16\" take less, and so do fewer ranks on the node";

// The coordinator's own decision stands, whatever the workers showed when they were ended by it. A
// lost node is different: a worker's own error before it counts more.
bool DecisionStands(Cause cause) {
  return cause == Cause::kHang || cause == Cause::kInitTimeout || cause == Cause::kNodeUnhealthy;
}

Cause CauseOf(const Worker& worker, bool certain) {
  if (worker.failed && worker.failed->kind() == v1::WorkerFailed::START) return Cause::kStartFailed;
  if (worker.failed && worker.failed->kind() == v1::WorkerFailed::PORT_COLLISION) {
    return Cause::kPortCollision;
  }
  if (!certain) return Cause::kCommunicationUnknown;
  if (!worker.exited) return Cause::kWorkerError;
  if (worker.exited->has_out_of_memory()) return Cause::kOutOfMemory;
  if (!worker.failed && worker.exited->hint() == v1::HINT_PORT_COLLISION) {
    return Cause::kPortCollision;
  }
  const bool reported = worker.failed || worker.exited->has_error();
  return worker.exited->signal() != 0 && !reported ? Cause::kSignal : Cause::kWorkerError;
}

void AddWorker(const Worker& worker, FailureRecord& failure) {
  failure.node = worker.node;
  if (worker.failed) {
    failure.t = static_cast<double>(worker.failed->time_ns()) / kSecondNs;
    failure.config = worker.failed->kind() == v1::WorkerFailed::CONFIG;
    failure.error_message = worker.failed->message();
  }
  if (!worker.exited) return;
  const v1::WorkerExited& exited = *worker.exited;
  failure.pid = exited.pid();
  failure.exit_code = exited.exit_code();
  failure.signal = exited.signal();
  failure.t = static_cast<double>(exited.time_ns()) / kSecondNs;
  failure.core_dump = exited.core_dump();
  failure.log_tail.assign(exited.log_tail().begin(), exited.log_tail().end());
  if (exited.has_error()) {
    failure.error_message = exited.error().message();
    failure.error_traceback = exited.error().traceback();
  }
}

// Every rank's flight recorder tells a part of the story.
void AddArtifacts(const Generation& g, FailureRecord& failure) {
  constexpr int kArtifactsMax = 256;
  for (const Worker& worker : g.workers) {
    if (!worker.exited) continue;
    for (const std::string& file : worker.exited->artifacts()) {
      if (failure.artifacts.size() < kArtifactsMax) failure.artifacts.push_back(file);
    }
  }
}

void BlameUnhealthy(const HealthVerdict& verdict, FailureRecord& failure) {
  const bool unfit = !verdict.unfit.empty();
  failure.cause = Cause::kNodeUnhealthy;
  failure.sends_away = !unfit;
  failure.node = unfit ? verdict.unfit.begin()->first : verdict.away.begin()->first;
  std::vector<std::string> reasons;
  reasons.reserve(verdict.unfit.size() + verdict.away.size());
  for (const auto& [node, reason] : verdict.unfit) {
    reasons.push_back(absl::StrCat("node ", node, " is unhealthy: ", reason));
  }
  for (const auto& [node, reason] : verdict.away) reasons.push_back(reason);
  failure.reason = absl::StrJoin(reasons, "; ");
}

}  // namespace

FailureRecord MakeFailure(const State& state, bool before_start) {
  const Generation& g = state.generation;
  FailureRecord failure;
  failure.generation = g.number;
  failure.before_start = before_start;
  failure.report = g.report;
  AddArtifacts(g, failure);
  // No worker is to blame where some were never started.
  if (!g.unhealthy.empty() || !g.unreached.empty()) {
    BlameUnhealthy(JudgeHealth(state), failure);
    return failure;
  }
  if (DecisionStands(g.ended_for)) {
    failure.rank = g.blamed_rank;
    if (g.blamed_rank >= 0 && g.blamed_rank < static_cast<int64_t>(g.workers.size())) {
      AddWorker(g.workers[g.blamed_rank], failure);
    }
    failure.exit_code = failure.signal = 0;  // its end was our doing
    failure.cause = g.ended_for;
    failure.reason = g.end_reason;
    failure.config = false;
    return failure;
  }
  std::map<std::string, int64_t> offsets;
  for (const auto& [name, node] : state.nodes) offsets[name] = node.clock_offset_ns;
  const RootCause root = FindRootCause(g, offsets, !state.spec.train_config_json().empty());
  failure.secondary = SecondaryRanks(g, root.rank);
  failure.groups = GroupLastWords(g);
  failure.rank = root.rank;
  failure.reason = root.reason;
  if ((root.rank < 0 || !root.certain) && g.ended_for != Cause::kNone) {
    failure.cause = g.ended_for;
    failure.node = g.blamed_node;
    failure.reason = g.end_reason;
    if (g.ended_for == Cause::kNodeLost) failure.rank = root.rank;
    return failure;
  }
  if (root.rank < 0) {
    failure.reason = g.end_reason;
    return failure;
  }
  AddWorker(g.workers[root.rank], failure);
  failure.cause = CauseOf(g.workers[root.rank], root.certain);
  if (failure.cause == Cause::kOutOfMemory && !state.spec.train_config_json().empty()) {
    failure.reason += kMemoryAdvice;
  }
  if (root.ended_by >= 0) {
    // The rank to blame may have been ended by order: the exit code is that of the one that failed.
    const auto& exited = g.workers[root.ended_by].exited;
    failure.exit_code = exited ? exited->exit_code() : 0;
    failure.signal = exited ? exited->signal() : 0;
    failure.cause = Cause::kWorkerError;
  }
  return failure;
}

}  // namespace ddprun::coordinator
