// The coordinator's shell: feeds its core and performs what it decides.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr int64_t kDiskMinNs = kMillisecondNs;
constexpr int64_t kDiskMaxNs = 60 * kMillisecondNs;
constexpr int64_t kAfterEffectNs = 16 * kSecondNs;  // of a disturbance: lease, collective timeout

uint32_t NumberIn(const std::string& name) {
  uint32_t number = 0;
  return absl::SimpleAtoi(name.substr(1), &number) ? number : 0;
}

}  // namespace

void World::StepCoordinator(const coordinator::Event& event) {
  std::vector<coordinator::Effect> effects = coordinator::Step(coordinator_, event, now_ns_);
  checker_.AfterCoordinator(coordinator_, effects);
  for (coordinator::Effect& effect : effects) {
    std::visit([this](auto& e) { Do(e); }, effect);
  }
  const coordinator::Generation& g = coordinator_.generation;
  if (g.step > best_step_) {
    best_step_ = g.step;
    NoteProgress();
  }
  ArmCoordinator();
}

void World::Submit(const coordinator::Past& past, bool resume) {
  v1::JobSpec spec = scenario_.spec;
  spec.set_resume(resume);
  StepCoordinator(
      coordinator::JobSubmitted{spec, absl::StrCat("token", coordinator_number_), "sim", past});
}

void World::KillCoordinator() {
  coordinator_up_ = false;
  checkpoint_asked_ns_ = 0;
  coordinator_armed_ns_ = 0;
  coordinator_paused_until_ns_ = 0;
  for (SimNode& node : nodes_) {
    for (uint32_t& stream : node.server_streams) {
      if (stream != 0) BreakStream(stream, Delay(), -1);
      stream = 0;
    }
  }
}

void World::CoordinatorReturns() {
  coordinator_up_ = true;
  ++coordinator_number_;
  coordinator_ = coordinator::State();
  disk_free_ns_ = now_ns_;
  generation_before_ = past_.generation;
  checker_.CoordinatorRestarts(past_.generation);
  if (tracing()) Say("coordinator", "is started again");
  NoteProgress();
  coordinator::Past past = past_;
  if (scenario_.sabotage == Sabotage::kPastSaysNothingRuns) past.may_run = false;
  Submit(past, /*resume=*/true);
}

void World::ArmCoordinator() {
  const int64_t next_ns = coordinator::NextDeadlineNs(coordinator_);
  if (next_ns == 0 || (coordinator_armed_ns_ != 0 && coordinator_armed_ns_ <= next_ns)) return;
  coordinator_armed_ns_ = std::max(next_ns, now_ns_);
  queue_.Push({.when_ns = coordinator_armed_ns_,
               .what = What::kCoordinatorTime,
               .number = static_cast<uint64_t>(coordinator_armed_ns_)});
}

void World::CoordinatorTime(const SimEvent& event) {
  if (coordinator_armed_ns_ != event.when_ns) return;  // an earlier one was set since
  coordinator_armed_ns_ = 0;
  const int64_t next_ns = coordinator::NextDeadlineNs(coordinator_);
  if (next_ns == 0 || next_ns > now_ns_) return ArmCoordinator();
  StepCoordinator(coordinator::TimePassed{});
  const int64_t after_ns = coordinator::NextDeadlineNs(coordinator_);
  if (after_ns != 0 && after_ns <= now_ns_) {
    checker_.Violate("I10",
                     absl::StrCat("the coordinator, ", coordinator::PhaseName(coordinator_.phase),
                                  ", waits for ", after_ns / 1e9, " s, which is over"));
  }
}

void World::Do(coordinator::SendToNode& effect) {
  if (effect.message.has_checkpoint_at()) checkpoint_asked_ns_ = 0;
  const SimNode& node = nodes_[NumberIn(effect.node)];
  const uint32_t agent = NumberIn(effect.incarnation);
  if (agent >= node.server_streams.size() || node.server_streams[agent] == 0) return;
  if (effect.message.has_heartbeat_answer()) {
    effect.message.mutable_heartbeat_answer()->set_sent_ns(now_ns_);
  }
  if (effect.message.has_start_workers()) {
    *effect.message.mutable_start_workers()->mutable_spec() = coordinator_.spec;
  }
  SendDownstream(node.server_streams[agent], std::move(effect.message));
}

// The server sends what is queued and nothing more; an agent that was refused ends the stream.
void World::Do(coordinator::CloseNode& effect) {
  SimNode& node = nodes_[NumberIn(effect.node)];
  const uint32_t agent = NumberIn(effect.incarnation);
  if (agent >= node.server_streams.size() || node.server_streams[agent] == 0) return;
  const uint32_t stream = node.server_streams[agent];
  node.server_streams[agent] = 0;
  if (effect.cut) BreakStream(stream, 2 * scenario_.network.delay_max_ns, -1);
}

void World::Do(coordinator::RecordEvent& effect) {
  const auto& name = effect.event.begin()->get_ref<const std::string&>();
  past_.generation = std::max(past_.generation, effect.event["generation"].get<uint64_t>());
  if (name == "generation_ended") {
    past_.may_run = false;
    checkpoint_asked_ns_ = 0;
  }
  if (name == "generation_started") {
    past_.may_run = true;
    NoteProgress();
    best_step_ = 0;
  }
  if (name == "generation_ended" && coordinator_.generation.failed) CheckFailure();
  if (tracing()) Say("event", effect.event.dump());
}

void World::CheckFailure() {
  const bool near =
      quiet_from_ns_ + kAfterEffectNs >= coordinator_.generation.started_ns && quiet_from_ns_ != 0;
  if (scenario_.network.loss > 0 || near) return;
  checker_.Violate("I11", absl::StrCat("generation ", coordinator_.generation.number,
                                       " failed, but nothing had gone wrong"));
}

void World::Do(coordinator::PersistGeneration&) {}

int64_t World::DiskTime() {
  disk_free_ns_ = std::max(disk_free_ns_, now_ns_) + random_.Between(kDiskMinNs, kDiskMaxNs);
  return disk_free_ns_;
}

void World::Do(coordinator::ChooseResume& effect) {
  coordinator::ResumeChosen chosen = disk_.Choose(effect.generation);
  if (scenario_.sabotage == Sabotage::kWrongResumeStep) ++chosen.step;
  queue_.Push({.when_ns = DiskTime(),
               .what = What::kResumeChosen,
               .rank = coordinator_number_,
               .slot = chosen_.Put(std::move(chosen))});
}

void World::Do(coordinator::CommitCheckpoint& effect) {
  checker_.Committing(effect, disk_);
  if (scenario_.sabotage == Sabotage::kDiskNeverCommits) return;
  queue_.Push({.when_ns = DiskTime(),
               .what = What::kCheckpointStored,
               .id = static_cast<uint32_t>(effect.generation),
               .rank = coordinator_number_,
               .number = effect.step});
}

// The checkpoint becomes real at this moment.
void World::CommitDone(const SimEvent& event) {
  coordinator::CheckpointStored stored{event.id, event.number, false, "", ""};
  if (commit_fails_) {
    commit_fails_ = false;
    disk_.DropStaging(stored.generation, stored.step);
    stored.reason = "no space left on device";
  } else if (disk_.Commit(stored.generation, stored.step)) {
    stored.ok = true;
    stored.path = absl::StrCat("step-", stored.step);
  } else {
    stored.reason = "the folder is there already";
  }
  if (tracing()) Say("disk", absl::StrCat("commit of step ", stored.step, " ", stored.reason));
  StepCoordinator(stored);
}

void World::Do(coordinator::WriteHangReport&) {}
void World::Do(coordinator::DropStaging& effect) {
  disk_.DropStaging(effect.generation, effect.step);
}

// Nothing waits for it.
void World::Do(coordinator::RunHook&) {}

void World::CheckSuccess() {
  uint32_t well = 0;
  for (const SimKeeper& keeper : keepers_) {
    if (keeper.generation != coordinator_.generation.number) continue;
    well += static_cast<uint32_t>(std::count_if(keeper.workers.begin(), keeper.workers.end(),
                                                [](const SimWorker& w) { return w.ended_well; }));
  }
  if (well != coordinator_.generation.workers.size()) {
    checker_.Violate("I13",
                     absl::StrCat("the job succeeded, but only ", well, " of ",
                                  coordinator_.generation.workers.size(), " ranks ended with 0"));
  }
}

void World::Do(coordinator::FinishJob& effect) {
  finished_ = true;
  outcome_ = effect.outcome;
  if (tracing()) {
    Say("coordinator", absl::StrCat("ends: ", outcome_.status, " ", outcome_.exit_code, " ",
                                    outcome_.failure_kind, " ", outcome_.reason));
  }
  if (outcome_.status == "succeeded") CheckSuccess();
  // Nothing of the job may be left where it could run, but for what an earlier coordinator left to
  // end with its leases.
  for (const SimKeeper& keeper : keepers_) {
    if (keeper.generation <= generation_before_) continue;
    const SimNode& node = nodes_[keeper.node];
    const bool fenced = node.paused_until_ns > now_ns_ && keeper.lease_until_ns != 0 &&
                        keeper.lease_until_ns <= node.paused_until_ns;
    if (keeper.alive > 0 && !fenced) {
      checker_.Violate("I1", absl::StrCat("the job is over, but generation ", keeper.generation,
                                          " runs on ", node.plan.name));
    }
  }
}

}  // namespace ddprun::sim
