#include "launcher/sim/checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::sim {
namespace {

constexpr int32_t kTimeLimit = 124;  // exit code

}  // namespace

void Checker::Violate(const char* invariant, std::string text) {
  if (violation_.empty()) violation_ = absl::StrCat(invariant, ": ", text);
}

void Checker::OnRecord(const coordinator::State& state, const nlohmann::ordered_json& event) {
  const auto& name = event.begin()->get_ref<const std::string&>();
  if (name == "checkpoint_rejected") {
    rejected_ = true;
  } else if (name == "generation_started") {
    ++generations_;
    OnGeneration(state, event);
  } else if (name == "resize_planned") {
    resizing_ = true;
  } else if (name == "generation_ended") {
    // The state may be that of the next generation already.
    if (state.generation.failed || event.contains("cause")) {
      ++failed_;
      resizing_ = false;  // it failed before
    }
  } else if (name == "restart_scheduled") {
    OnRestart(state, event);
  } else if (name == "node_left_out") {
    left_out_.insert(event["node"].get<std::string>());
  } else if (name == "node_let_in") {
    left_out_.erase(event["node"].get<std::string>());
  }
}

uint64_t Checker::Counted(const coordinator::State& state) const {
  const double window = state.spec.restart().window_seconds();
  if (window <= 0) return charged_;
  return static_cast<uint64_t>(
      std::count_if(charged_ns_.begin(), charged_ns_.end(), [&](int64_t charged_ns) {
        return static_cast<double>(state.now_ns - charged_ns) < window * 1e9;
      }));
}

void Checker::OnGeneration(const coordinator::State& state, const nlohmann::ordered_json& event) {
  std::vector<std::string> nodes;
  for (const auto& name : event["nodes"]) nodes.push_back(name.get<std::string>());
  const v1::JobSpec& spec = state.spec;
  if (nodes.size() < spec.nodes_min() || nodes.size() > spec.nodes_max()) {
    Violate("I18", absl::StrCat("a generation of ", nodes.size(), " nodes, of ", spec.nodes_min(),
                                " to ", spec.nodes_max()));
  }
  const bool wishes = std::any_of(state.nodes.begin(), state.nodes.end(), [](const auto& entry) {
    return entry.second.node_rank_wanted >= 0;
  });
  for (size_t i = 0; i < nodes_.size() && nodes.size() == nodes_.size() && !wishes; ++i) {
    const auto now = std::find(nodes.begin(), nodes.end(), nodes_[i]);
    if (now != nodes.end() && *now != nodes[i]) {
      Violate("I19", absl::StrCat("node ", nodes_[i], " has left its place ", i));
    }
  }
  nodes_ = std::move(nodes);
}

void Checker::OnRestart(const coordinator::State& state, const nlohmann::ordered_json& event) {
  if (resizing_ && !event.contains("free")) {
    Violate("I17", "a planned resize is charged to the budget");
  }
  resizing_ = false;
  if (event.contains("free")) {
    ++free_;
  } else {
    ++charged_;
    charged_ns_.push_back(state.now_ns);
  }
  if (event["restarts_used"].get<uint64_t>() != Counted(state)) {
    Violate("I3", absl::StrCat("restarts_used is ", event["restarts_used"].get<uint64_t>(), ", ",
                               Counted(state), " restarts count"));
  }
  if (state.failures.empty()) return;
  const coordinator::FailureRecord& failure = state.failures.back();
  const bool exited = failure.cause == coordinator::Cause::kWorkerError && failure.signal == 0;
  for (int32_t code : state.spec.restart().no_restart_on()) {
    if (exited && failure.exit_code == code) {
      Violate("I15", absl::StrCat("code ", code, " is restarted"));
    }
  }
}

void Checker::CheckBudget(const coordinator::State& state) {
  const uint64_t budget = state.spec.restart().max_restarts();
  const uint64_t restarts = charged_ + free_;
  if (Counted(state) > budget) {
    Violate("I3", absl::StrCat(Counted(state), " restarts of ", budget));
  }
  if (free_ > state.spec.restart().free_restarts_limit()) {
    Violate("I3", absl::StrCat(free_, " restarts free of charge"));
  }
  if (failed_ > restarts + 1) {
    Violate("I3", absl::StrCat(failed_, " failed generations, ", restarts, " restarts"));
  }
  if (generations_ > generations_before_ + 1 + restarts) {
    Violate("I3", absl::StrCat(generations_, " generations began with ", restarts, " restarts"));
  }
}

void Checker::OnStarts(const std::vector<const v1::StartWorkers*>& starts) {
  uint32_t next = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const v1::StartWorkers& start = *starts[i];
    if (start.first_rank() != next || start.group_rank() != i ||
        start.group_world_size() != starts.size() || start.local_world_size() == 0 ||
        start.world_size() != starts[0]->world_size()) {
      Violate("I6", absl::StrCat("node ", i, " gets ranks ", start.first_rank(), "+",
                                 start.local_world_size(), " of ", start.world_size()));
    }
    next += start.local_world_size();
  }
  if (next != starts[0]->world_size()) {
    Violate("I6", absl::StrCat(next, " ranks were given of ", starts[0]->world_size()));
  }
}

void Checker::AfterCoordinator(const coordinator::State& state,
                               const std::vector<coordinator::Effect>& effects) {
  rejected_ = false;
  std::vector<const v1::StartWorkers*> starts;
  for (const coordinator::Effect& effect : effects) {
    if (const auto* record = std::get_if<coordinator::RecordEvent>(&effect)) {
      OnRecord(state, record->event);
    } else if (const auto* persist = std::get_if<coordinator::PersistGeneration>(&effect)) {
      if (persist->generation <= newest_generation_) {
        Violate("I7",
                absl::StrCat("generation ", persist->generation, " follows ", newest_generation_));
      }
      newest_generation_ = persist->generation;
    } else if (const auto* send = std::get_if<coordinator::SendToNode>(&effect)) {
      // A message that is sent again stands alone; the first sending is one transition.
      if (send->message.has_start_workers() &&
          std::holds_alternative<coordinator::RecordEvent>(effects.front())) {
        starts.push_back(&send->message.start_workers());
        if (left_out_.contains(send->node)) {
          Violate("I14", absl::StrCat("node ", send->node, " is left out, but gets workers"));
        }
      }
    } else if (const auto* finish = std::get_if<coordinator::FinishJob>(&effect)) {
      int32_t code = stop_signal_ == 0 ? 0 : 128 + stop_signal_;
      // The time limit may have come before the stop that was asked for.
      if (state.spec.time_limit_seconds() > 0 && finish->outcome.exit_code == kTimeLimit) {
        code = kTimeLimit;
      }
      if (stop_asked_ &&
          (finish->outcome.status != "stopped" || finish->outcome.exit_code != code)) {
        Violate("I9", absl::StrCat("a stop ended as ", finish->outcome.status, " with ",
                                   finish->outcome.exit_code));
      }
    }
  }
  if (!starts.empty()) OnStarts(starts);
  CheckBudget(state);
  if (state.committed_step < committed_step_ && !rejected_) {
    Violate("I8", absl::StrCat("the committed step went from ", committed_step_, " back to ",
                               state.committed_step));
  }
  committed_step_ = state.committed_step;
}

void Checker::ResumeWasChosen(const coordinator::ResumeChosen& chosen, const Disk& disk) {
  if (chosen.step != 0 && !disk.WasCommitted(chosen.step)) {
    Violate("I2", absl::StrCat("step ", chosen.step, " was never committed"));
  }
  chosen_ = chosen;
}

void Checker::CoordinatorRestarts(uint64_t newest_generation) {
  newest_generation_ = newest_generation;
  generations_before_ = generations_;
  failed_ = charged_ = free_ = 0;
  charged_ns_.clear();
  left_out_.clear();
  resizing_ = false;
  nodes_.clear();
  committed_step_ = 0;
  stop_asked_ = false;
  stop_signal_ = 0;
}

void Checker::StopWasAsked(bool accepted, int32_t signal) {
  if (!accepted) return;
  stop_asked_ = true;
  if (signal != 0) stop_signal_ = signal;
}

void Checker::Committing(const coordinator::CommitCheckpoint& commit, const Disk& disk) {
  if (!disk.HasAllShards(commit.generation, commit.step, commit.world_size)) {
    Violate("I8", absl::StrCat("step ", commit.step, " of generation ", commit.generation,
                               " is committed before each rank wrote it"));
  }
}

void Checker::NodeStarts(const v1::StartWorkers& order, Gang& gang) {
  if (order.generation() != chosen_.generation || order.resume_step() != chosen_.step ||
      order.resume_from() != chosen_.path) {
    Violate("I2", absl::StrCat("generation ", order.generation(), " resumes from step ",
                               order.resume_step(), ", chosen was step ", chosen_.step));
  }
  if (order.world_size() != gang.world_size || order.group_world_size() != gang.group_world_size) {
    Violate("I6", absl::StrCat("world size ", order.world_size(), " and ", gang.world_size));
  }
  for (uint32_t i = 0; i < order.local_world_size(); ++i) {
    const uint32_t rank = order.first_rank() + i;
    if (rank >= gang.ranks.size() || gang.ranks[rank]) {
      Violate("I6", absl::StrCat("rank ", rank, " of ", gang.world_size, " was given twice"));
      return;
    }
    gang.ranks[rank] = true;
  }
}

void Checker::WorkerReads(const v1::Value& value, uint64_t generation) {
  const std::string mark = absl::StrCat("g", generation, ":");
  if (value.value().compare(0, mark.size(), mark) != 0) {
    Violate("I5", absl::StrCat("a worker of generation ", generation, " read ", value.value()));
  }
}

}  // namespace ddprun::sim
