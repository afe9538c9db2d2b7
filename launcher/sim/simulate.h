// Runs seeds: each is one job, or several in a row until enough has happened.
//
// A later job of a seed resumes the run folder of the one before unless that succeeded. RunSeed is
// a pure function of its arguments; seeds may run on several threads at once.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::sim {

constexpr uint64_t kEventsOfSeedMin = 1000;
constexpr uint64_t kFaultsOfSeedMin = 3;

struct SeedReport {
  uint64_t seed = 0;
  uint64_t jobs = 0;
  uint64_t events = 0;
  uint64_t faults = 0;
  uint64_t generations = 0;
  int64_t virtual_ns = 0;
  std::string violation;  // "": every invariant held
  std::string trace;      // when asked for
};

// `only_membership`: nodes leave and come back, and nothing else goes wrong (R3).
SeedReport RunSeed(uint64_t seed, bool with_faults, bool with_trace, bool only_membership = false);

}  // namespace ddprun::sim
