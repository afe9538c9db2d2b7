// The invariants of the control plane, checked after every event. The first violation is kept.
//
//  I1  workers of two generations never run at once on nodes that are not fenced
//  I2  a resume step comes from a committed, whole checkpoint, and is the same for all ranks
//  I3  the restart budget is exact
//  I4  every job ends or goes on within a bounded time after the last disturbance
//  I5  no value crosses generations
//  I6  ranks are 0 … world − 1, consecutive on each node, the world size the same everywhere
//  I7  generation numbers only grow
//  I8  a checkpoint is committed only when each rank of one generation wrote it; the committed step
//  goes back only by
//      a recorded rejection
//  I9  a stop ends with the status stopped and 128 + the signal
//  I10 no deadline lies in the past once it was answered
//  I11 on a network that loses nothing, a generation fails only near a disturbance
//  I12 a checkpoint that is asked for is agreed in bounded time, while the generation lasts
//  I13 a job succeeds only when every rank of its last generation ended with 0
//  I16 a generation in which a worker stands still ends within the hang timeout, the bound of an
//  examination and the grace
//  I17 a planned resize is free of charge
//  I18 a generation has MIN to MAX nodes
//  I19 where one node is replaced, the others keep their places
// I1, I4, I10 to I13 and I16 are observed by the world (world.h), which knows processes and time;
// the others here. Pure values.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "launcher/coordinator/core.h"
#include "launcher/sim/disk.h"
#include "launcher/sim/parts.h"

namespace ddprun::sim {

class Checker {
 public:
  void Violate(const char* invariant, std::string text);
  bool violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }

  // The coordinator made one transition with these effects.
  void AfterCoordinator(const coordinator::State& state,
                        const std::vector<coordinator::Effect>& effects);
  // The coordinator was told this.
  void ResumeWasChosen(const coordinator::ResumeChosen& chosen, const Disk& disk);
  // Another process, which knows only what the run folder tells.
  void CoordinatorRestarts(uint64_t newest_generation);
  void StopWasAsked(bool accepted, int32_t signal);
  void Committing(const coordinator::CommitCheckpoint& commit, const Disk& disk);
  // A node begins a generation.
  void NodeStarts(const v1::StartWorkers& order, Gang& gang);
  void WorkerReads(const v1::Value& value, uint64_t generation);

  uint64_t generations() const { return generations_; }
  // The newest generation that was made durable, for the next job of the same run folder.
  uint64_t newest_generation() const { return newest_generation_; }
  void set_newest_generation(uint64_t generation) { newest_generation_ = generation; }

 private:
  void OnRecord(const coordinator::State& state, const nlohmann::ordered_json& event);
  void OnGeneration(const coordinator::State& state, const nlohmann::ordered_json& event);
  void OnStarts(const std::vector<const v1::StartWorkers*>& starts);
  void OnRestart(const coordinator::State& state, const nlohmann::ordered_json& event);
  void CheckBudget(const coordinator::State& state);
  // Charged restarts that count: all, or those within the window.
  uint64_t Counted(const coordinator::State& state) const;

  std::string violation_;
  uint64_t newest_generation_ = 0;
  uint64_t generations_ = 0;         // started
  uint64_t generations_before_ = 0;  // by the coordinator's earlier processes
  uint64_t failed_ = 0;
  uint64_t charged_ = 0;
  uint64_t free_ = 0;
  std::vector<int64_t> charged_ns_;
  std::set<std::string> left_out_;  // nodes
  bool resizing_ = false;           // the next restart is that of a planned resize
  std::vector<std::string> nodes_;  // of the last generation
  coordinator::ResumeChosen chosen_;
  uint64_t committed_step_ = 0;
  bool rejected_ = false;  // in this transition
  bool stop_asked_ = false;
  int32_t stop_signal_ = 0;
};

}  // namespace ddprun::sim
