// RunEvents: what events.jsonl says about whose log is whose, and whether the job goes on. Reads
// what has been added each time.
//
// Threads: one. Lines that are no JSON are passed over.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::logs {

class RunEvents {
 public:
  explicit RunEvents(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  void Read();
  // "" while it is not known.
  std::string NodeOf(uint64_t generation, uint32_t rank) const;
  bool finished() const { return finished_; }

 private:
  void TakeLine(std::string_view line);

  std::string run_dir_;
  uint64_t offset_ = 0;
  std::string partial_;
  std::map<std::pair<uint64_t, uint32_t>, std::string> nodes_;
  bool finished_ = false;
};

// Whether a ddprun holds the run folder's lock, as far as this machine can tell.
bool IsLocked(const std::string& run_dir);

}  // namespace ddprun::logs
