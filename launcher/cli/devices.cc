#include "launcher/cli/devices.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::cli {

absl::Status FillDevice(const Options& o, const Surroundings& here, const v1::JobSpec* before,
                        RunPlan* plan) {
  v1::JobSpec& spec = plan->spec;
  if (o.gpus) {
    spec.mutable_gpus()->Assign(o.gpus->begin(), o.gpus->end());
  } else if (before != nullptr) {
    *spec.mutable_gpus() = before->gpus();
  }
  const bool local = o.command == Command::kRun;
  const uint32_t usable = here.gpus.usable;
  std::string wanted = "auto";
  if (before != nullptr && !before->device().empty()) wanted = before->device();
  if (o.gpus) wanted = "cuda";
  if (o.device) wanted = *o.device;
  const std::string cuda_part =
      JoinPath(ParentPath(here.binary_folder), "lib/libddp_worker_cuda.so");
  const bool trainer = !spec.train_config_json().empty();
  const bool cuda_missing = local && trainer && access(cuda_part.c_str(), R_OK) != 0;
  if (wanted == "auto" && usable > 0 && cuda_missing) {
    plan->notes.push_back(absl::StrCat("training on the CPU although there are ", usable, " GPUs: ",
                                       cuda_part, " is missing; ./scripts/build.sh builds it"));
    wanted = "cpu";
  }
  if (wanted == "auto") wanted = usable > 0 ? "cuda" : "cpu";
  const bool needs_gpu = wanted == "cuda" && local;
  if (needs_gpu && usable == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        o.gpus ? "--gpus" : "--device cuda", ": no GPU can be used here: ", here.gpus.looked_at,
        "; use --device cpu, or see to the driver"));
  }
  if (needs_gpu && cuda_missing) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device cuda: the trainer's CUDA part ", cuda_part,
                     " is missing: run ./scripts/build.sh, or use --device cpu"));
  }
  spec.set_device(wanted);
  return absl::OkStatus();
}

absl::Status FillPlaces(const Options& o, const Surroundings& here, RunPlan* plan) {
  if (o.command != Command::kRun) return absl::OkStatus();
  uint32_t workers = plan->spec.processes_per_node();
  if (workers == 0) {
    const auto own = CountProcesses(o.processes.value_or(Processes{}), here, o);
    if (!own.ok()) return own.status();
    workers = *own;
  }
  auto places = placement::PlanNode(here.machine, plan->spec, workers);
  if (!places.ok()) return absl::InvalidArgumentError(places.status().message());
  plan->places = *std::move(places);
  return absl::OkStatus();
}

}  // namespace ddprun::cli
