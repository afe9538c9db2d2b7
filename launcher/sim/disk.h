// The shared disk with the checkpoints, as the coordinator's checkpoint store would leave it:
// staged shards, committed steps, damage.
//
// It outlives a job, so that the next one can resume from it. Pure values; errors are put in from
// outside.
#pragma once

#include <cstdint>
#include <vector>

#include "launcher/coordinator/core.h"

namespace ddprun::sim {

class Disk {
 public:
  explicit Disk(uint32_t kept) : kept_(kept) {}

  // One rank's files of a step are durable.
  void WriteShard(uint64_t generation, uint64_t step, uint32_t rank, uint32_t world_size);
  // Whether every rank of that generation has written that step.
  bool HasAllShards(uint64_t generation, uint64_t step, uint32_t world_size) const;
  // The staged step becomes real. False when a committed folder of that step is there already.
  bool Commit(uint64_t generation, uint64_t step);
  void DropStaging(uint64_t generation, uint64_t step);
  // The newest whole one; damaged ones above it are put aside and named.
  coordinator::ResumeChosen Choose(uint64_t generation);
  // False when there is none.
  bool DamageNewest();
  // Whether this step is committed (it may have been damaged since).
  bool WasCommitted(uint64_t step) const;
  uint64_t newest() const { return committed_.empty() ? 0 : committed_.back().step; }

 private:
  struct Staged {
    uint64_t generation = 0;
    uint64_t step = 0;
    uint32_t count = 0;
    std::vector<bool> ranks;
  };
  struct Committed {
    uint64_t step = 0;
    uint64_t generation = 0;
    bool damaged = false;
  };
  std::vector<Staged>::iterator Find(uint64_t generation, uint64_t step);

  uint32_t kept_;
  std::vector<Staged> staged_;
  std::vector<Committed> committed_;  // by step
};

}  // namespace ddprun::sim
