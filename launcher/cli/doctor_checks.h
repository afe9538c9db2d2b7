// The list of checks, and the runner that gives each a deadline.
//
// All checks run at once, each in a thread of its own, and are shown in the order of the list. One
// that is not done at its deadline (a dead NFS server holds whoever asks it, for ever) is a
// finding; its thread is left behind, so whoever runs checks ends its process with _exit.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

inline constexpr std::chrono::seconds kCheckTimeMax{8};

struct Check {
  const char* name;
  std::function<Outcome(const World&)> run;
};
std::vector<Check> AllChecks();

// `on_finding` sees each finding as soon as it and those before it are there.
Outcome RunChecks(const std::vector<Check>& checks, const World& world,
                  std::chrono::milliseconds time_max,
                  const std::function<void(const Finding&)>& on_finding);

}  // namespace ddprun::doctor
