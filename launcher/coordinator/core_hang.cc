// A generation in which something stands still: it is examined everywhere before it is ended.
#include "absl/strings/str_cat.h"
#include "launcher/coordinator/hang_report.h"
#include "launcher/coordinator/hang_verdict.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

// Nodes collect stacks for 10 s at most.
constexpr int64_t kExaminationNs = 20 * kSecondNs;

void EndForHang(Turn& turn, const HangVerdict& verdict) {
  State& s = turn.state;
  Generation& g = s.generation;
  const std::string name = HangReportName(g.number);
  turn.out.push_back(WriteHangReport{name, HangReport(s, verdict)});
  turn.Record("hang_found", {{"rank", verdict.rank},
                             {"seconds", verdict.seconds},
                             {"reason", verdict.reason},
                             {"report", name + ".json"}});
  g.ended_for = Cause::kHang;
  g.blamed_rank = verdict.rank;
  g.report = name + ".json";
  EndGeneration(turn, true, absl::StrCat("hung: ", verdict.reason), v1::StopWorkers::ABORT);
}

}  // namespace

void HandleWorkerStalled(Turn& turn, const v1::WorkerStalled& stalled) {
  State& s = turn.state;
  Generation& g = s.generation;
  // A stop has its own deadline; during a pause nobody is expected to move.
  if (s.phase != Phase::kRunning || s.stop.requested || s.pause.wanted || g.examination ||
      stalled.rank() >= g.workers.size()) {
    return;
  }
  g.examination =
      Examination{stalled.rank(), stalled.seconds(), turn.now_ns + kExaminationNs, {}, {}};
  for (const Placement& placement : g.placements) g.examination->awaited.insert(placement.node);
  v1::CoordinatorMessage message;
  message.mutable_examine_workers()->set_generation(g.number);
  message.mutable_examine_workers()->set_reason(
      absl::StrCat("rank ", stalled.rank(), " stands still"));
  turn.SendToMembers(message);
}

void HandleWorkersExamined(Turn& turn, const Node& node, const v1::WorkersExamined& examined) {
  Generation& g = turn.state.generation;
  if (turn.state.phase != Phase::kRunning || !g.examination) return;
  if (g.examination->awaited.erase(node.name) == 0) return;
  for (const v1::WorkerPlace& place : examined.workers()) {
    // A node speaks of its own ranks only.
    if (place.rank() >= g.workers.size() || g.workers[place.rank()].node != node.name) continue;
    g.examination->places[place.rank()] = place;
  }
  if (g.examination->awaited.empty()) ConcludeExamination(turn);
}

void ConcludeExamination(Turn& turn) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (s.phase != Phase::kRunning || !g.examination) return;
  std::map<uint32_t, v1::WorkerPlace> living;
  for (const auto& [rank, place] : g.examination->places) {
    if (place.pid() != 0 && !g.workers[rank].exited) living[rank] = place;
  }
  const HangVerdict verdict = JudgeHang(living, g.examination->awaited.empty(),
                                        s.spec.supervision().hang_timeout_seconds());
  if (!verdict.over) {
    EndForHang(turn, verdict);
  } else {
    turn.Record("hang_over",
                {{"rank", g.examination->found_by}, {"seconds", g.examination->seconds}});
  }
  g.examination.reset();
}

}  // namespace ddprun::coordinator
