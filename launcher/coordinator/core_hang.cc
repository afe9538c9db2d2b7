// A generation in which something stands still, or is not ready in time: it is examined everywhere
// before it is ended.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/hang_report.h"
#include "launcher/coordinator/hang_verdict.h"
#include "launcher/coordinator/init_verdict.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

// Nodes collect stacks for 10 s at most.
constexpr int64_t kExaminationNs = 20 * kSecondNs;
constexpr size_t kRanksNamedMax = 16;

void BeginExamination(Turn& turn, Examination examination, const std::string& reason) {
  Generation& g = turn.state.generation;
  examination.deadline_ns = turn.now_ns + kExaminationNs;
  for (const Placement& placement : g.placements) examination.awaited.insert(placement.node);
  g.examination = std::move(examination);
  v1::CoordinatorMessage message;
  message.mutable_examine_workers()->set_generation(g.number);
  message.mutable_examine_workers()->set_reason(reason);
  turn.SendToMembers(message);
}

std::map<uint32_t, v1::WorkerPlace> LivingPlaces(const Generation& g) {
  std::map<uint32_t, v1::WorkerPlace> living;
  for (const auto& [rank, place] : g.examination->places) {
    if (place.pid() != 0 && !g.workers[rank].exited) living[rank] = place;
  }
  return living;
}

std::set<uint32_t> RanksNotReady(const Generation& g) {
  std::set<uint32_t> ranks;
  for (uint32_t rank = 0; rank < g.workers.size(); ++rank) {
    if (!g.workers[rank].ready && !g.workers[rank].exited) ranks.insert(rank);
  }
  return ranks;
}

// "rank 2 (node b)", "ranks 0 (node a), 3 (node b) and 4 more".
std::string RanksOnNodes(const Generation& g, const std::set<uint32_t>& ranks) {
  std::vector<std::string> named;
  for (const uint32_t rank : ranks) {
    if (named.size() == kRanksNamedMax) break;
    named.push_back(absl::StrCat(rank, " (node ", g.workers[rank].node, ")"));
  }
  const size_t more = ranks.size() - named.size();
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// L65: a rank that hangs while communicators are made holds all the others.
void EndForInitTimeout(Turn& turn, const std::set<uint32_t>& missing) {
  State& s = turn.state;
  Generation& g = s.generation;
  const InitVerdict verdict = JudgeInit(missing, LivingPlaces(g));
  const std::string reason =
      absl::StrCat("not ready within ", s.spec.supervision().init_timeout_seconds(),
                   " s: ", RanksOnNodes(g, missing), "; ", verdict.reason);
  const std::string name = HangReportName(g.number);
  turn.out.push_back(WriteHangReport{name, InitReport(s, verdict.rank, reason)});
  turn.Record("init_timed_out",
              {{"rank", verdict.rank}, {"reason", reason}, {"report", name + ".json"}});
  g.ended_for = Cause::kInitTimeout;
  g.blamed_rank = verdict.rank;
  g.report = name + ".json";
  EndGeneration(turn, true, reason, v1::StopWorkers::ABORT);
}

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
  BeginExamination(turn, {.found_by = stalled.rank(), .seconds = stalled.seconds()},
                   absl::StrCat("rank ", stalled.rank(), " stands still"));
}

void ExamineForInitTimeout(Turn& turn) {
  Generation& g = turn.state.generation;
  // A look at a standstill that is under way tells the same.
  if (g.examination) {
    g.examination->for_init = true;
    return;
  }
  BeginExamination(turn, {.for_init = true, .found_by = *RanksNotReady(g).begin()},
                   "not every rank was ready in time");
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
  // All that were missing may have come while it was looked.
  if (g.examination->for_init) {
    const std::set<uint32_t> missing = RanksNotReady(g);
    if (!missing.empty()) EndForInitTimeout(turn, missing);
    g.examination.reset();
    return;
  }
  const HangVerdict verdict = JudgeHang(LivingPlaces(g), g.examination->awaited.empty(),
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
