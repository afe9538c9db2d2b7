#include "launcher/cli/doctor_checks.h"

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/doctor_cards.h"
#include "launcher/cli/doctor_disk.h"
#include "launcher/cli/doctor_machine.h"
#include "launcher/cli/doctor_network.h"
#include "launcher/cli/doctor_secret.h"
#include "launcher/cli/doctor_software.h"

namespace ddprun::doctor {

std::vector<Check> AllChecks() {
  return {{"NVIDIA driver", CheckDriver}, {"built-in trainer", CheckWorker},
          {"Python", CheckPython},        {"shared memory", CheckSharedMemory},
          {"limits", CheckLimits},        {"cgroups", CheckCgroup},
          {"hang reports", CheckTools},   {"run folder", CheckDisk},
          {"network cards", CheckCards},  {"ports", CheckPorts},
          {"names", CheckNames},          {"clock", CheckClock},
          {"firewall", CheckFirewall},    {"secret", CheckSecrets}};
}

Outcome RunChecks(const std::vector<Check>& checks, const World& world,
                  std::chrono::milliseconds time_max,
                  const std::function<void(const Finding&)>& on_finding) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  // Owned by the threads as well: one that is left behind may look at it later.
  const auto shared = std::make_shared<const World>(world);
  std::vector<std::future<Outcome>> running;
  running.reserve(checks.size());
  for (const Check& check : checks) {
    std::packaged_task<Outcome()> task([run = check.run, shared] { return run(*shared); });
    running.push_back(task.get_future());
    std::thread(std::move(task)).detach();
  }
  Outcome all;
  for (size_t i = 0; i < checks.size(); ++i) {
    Outcome one;
    if (running[i].wait_until(deadline) == std::future_status::ready) {
      one = running[i].get();
    } else {
      one.findings.push_back(
          Problem(checks[i].name,
                  absl::StrFormat("no answer within %.1f s",
                                  std::chrono::duration<double>(time_max).count()),
                  "a disk, a device or a name server does not answer; a job would wait there, too",
                  "dmesg, and the state of mounts and devices"));
    }
    for (Finding& finding : one.findings) {
      if (on_finding) on_finding(finding);
      all.findings.push_back(std::move(finding));
    }
    all.facts.merge(one.facts);
  }
  return all;
}

}  // namespace ddprun::doctor
