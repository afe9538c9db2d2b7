#include "launcher/sim/disk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::sim {

std::vector<Disk::Staged>::iterator Disk::Find(uint64_t generation, uint64_t step) {
  return std::find_if(staged_.begin(), staged_.end(), [&](const Staged& staged) {
    return staged.generation == generation && staged.step == step;
  });
}

void Disk::WriteShard(uint64_t generation, uint64_t step, uint32_t rank, uint32_t world_size) {
  auto found = Find(generation, step);
  if (found == staged_.end()) {
    staged_.push_back({generation, step, 0, std::vector<bool>(world_size)});
    found = staged_.end() - 1;
  }
  if (rank >= found->ranks.size() || found->ranks[rank]) return;
  found->ranks[rank] = true;
  ++found->count;
}

bool Disk::HasAllShards(uint64_t generation, uint64_t step, uint32_t world_size) const {
  return std::any_of(staged_.begin(), staged_.end(), [&](const Staged& staged) {
    return staged.generation == generation && staged.step == step && staged.count == world_size &&
           staged.ranks.size() == world_size;
  });
}

bool Disk::Commit(uint64_t generation, uint64_t step) {
  DropStaging(generation, step);
  auto place =
      std::lower_bound(committed_.begin(), committed_.end(), step,
                       [](const Committed& committed, uint64_t s) { return committed.step < s; });
  if (place != committed_.end() && place->step == step) return false;
  committed_.insert(place, {step, generation, false});
  if (kept_ != 0 && committed_.size() > kept_) committed_.erase(committed_.begin());
  return true;
}

void Disk::DropStaging(uint64_t generation, uint64_t step) {
  auto found = Find(generation, step);
  if (found != staged_.end()) staged_.erase(found);
}

coordinator::ResumeChosen Disk::Choose(uint64_t generation) {
  coordinator::ResumeChosen chosen;
  chosen.generation = generation;
  staged_.clear();
  while (!committed_.empty()) {
    const Committed& newest = committed_.back();
    if (!newest.damaged) {
      chosen.step = newest.step;
      chosen.path = absl::StrCat("step-", newest.step);
      return chosen;
    }
    chosen.rejected.push_back(
        {newest.step, absl::StrCat("step-", newest.step, ".bad-g", generation), "damaged"});
    committed_.pop_back();
  }
  return chosen;
}

bool Disk::DamageNewest() {
  if (committed_.empty()) return false;
  committed_.back().damaged = true;
  return true;
}

bool Disk::WasCommitted(uint64_t step) const {
  return std::any_of(committed_.begin(), committed_.end(),
                     [step](const Committed& committed) { return committed.step == step; });
}

}  // namespace ddprun::sim
