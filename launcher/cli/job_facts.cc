#include "launcher/cli/job_facts.h"

#include <sys/utsname.h>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/worker_versions.h"

namespace ddprun::cli {

std::string JobFacts(const RunPlan& plan, const Surroundings& here) {
  nlohmann::ordered_json facts = {{"command_line", here.command_line}};
  utsname system = {};
  if (uname(&system) == 0) {
    facts["host"] = system.nodename;
    facts["kernel"] = system.release;
  }
  facts["cores"] = here.cores;
  facts["gpus_usable"] = here.gpus.usable;
  if (!here.gpus.driver.empty()) facts["nvidia_driver"] = here.gpus.driver;
  if (plan.world_size != 0) facts["world_size"] = plan.world_size;
  if (!plan.spec.train_config_json().empty()) {
    // Of this node's trainer; nodes with other ones do not get into the job.
    facts["versions"] = ReadWorkerVersions(JoinPath(here.binary_folder, "ddp-worker"));
  }
  facts["environment_added"] = plan.variables;
  return facts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::cli
