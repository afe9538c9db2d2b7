#include "launcher/sim/simulate.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr uint64_t kJobsOfSeedMax = 50;

}  // namespace

SeedReport RunSeed(uint64_t seed, bool with_faults, bool with_trace, bool only_membership) {
  SeedReport report;
  report.seed = seed;
  Trace trace(with_trace);
  std::optional<Disk> disk;
  coordinator::Past past;
  while (report.jobs < kJobsOfSeedMax && report.violation.empty()) {
    Scenario scenario = MakeScenario(seed, report.jobs,
                                     {.faults = with_faults, .only_membership = only_membership});
    if (past.generation == 0 || !disk) {
      disk.emplace(scenario.spec.checkpoints_kept());
    } else {
      scenario.spec.set_resume(true);
      scenario.work.total_steps += disk->newest();
    }
    trace.Line(0, 0, "job", absl::StrCat("seed ", seed, ", part ", report.jobs));
    World world(scenario, past, *disk, trace);
    const JobReport job = world.Run();
    ++report.jobs;
    report.events += job.events;
    report.faults += job.faults;
    report.generations += job.generations;
    report.virtual_ns += job.virtual_ns;
    if (!job.violation.empty()) {
      report.violation =
          absl::StrCat("seed ", seed, ", part ", report.jobs - 1, ", ", job.violation);
    }
    past = {};
    // It was seen to end, so nothing of it runs.
    if (job.outcome.status != "succeeded") past.generation = job.newest_generation;
    const bool enough =
        report.events >= kEventsOfSeedMin && (report.faults >= kFaultsOfSeedMin || !with_faults);
    if (enough) break;
  }
  report.trace = trace.text();
  return report;
}

}  // namespace ddprun::sim
