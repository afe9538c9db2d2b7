#include "worker/trainer/dry_run.h"

#include <exception>
#include <fstream>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "worker/trainer/plan_job.h"

namespace ddprun {
namespace {

constexpr std::chrono::seconds kPatience(60);
constexpr double kOptionsSeconds = 20;  // then no further option is measured
// Weights, gradients, and as much again for activations.
constexpr int64_t kModelCopies = 4;

int64_t HostMemoryAvailable() {
  std::ifstream stream("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  while (stream >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

std::optional<MemoryAdvice> Measure(const TrainConfig& config, std::shared_ptr<const Dataset> data,
                                    int world_size) {
  try {
    // What the weights are does not matter here, and their file may be gone after a resume.
    absl::StatusOr<PlannedJob> job = PlanJob(config, world_size, /*resumed=*/true, std::move(data));
    if (!job.ok()) return std::nullopt;
    absl::StatusOr<MemoryAdvice> advice =
        PlanMemory(&*job->model, *job->update, config, job->train_data->spec(), kOptionsSeconds);
    return advice.ok() ? std::optional(*std::move(advice)) : std::nullopt;
  } catch (const std::exception&) {  // the CPU's memory is full, too, or a module raised
    return std::nullopt;
  }
}

}  // namespace

std::optional<MemoryAdvice> DryRun(const TrainConfig& config, std::shared_ptr<const Dataset> data,
                                   int world_size, int local_ranks, int64_t weight_bytes) {
  if (data == nullptr) return std::nullopt;
  if (HostMemoryAvailable() < kModelCopies * weight_bytes * local_ranks) return std::nullopt;
  std::promise<std::optional<MemoryAdvice>> promise;
  std::future<std::optional<MemoryAdvice>> advice = promise.get_future();
  try {
    std::thread([promise = std::move(promise), config, data = std::move(data),
                 world_size]() mutable {
      promise.set_value(Measure(config, std::move(data), world_size));
    }).detach();
  } catch (const std::exception&) {  // no memory for a thread
    return std::nullopt;
  }
  if (advice.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return advice.get();
}

}  // namespace ddprun
