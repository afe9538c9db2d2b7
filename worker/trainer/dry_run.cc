#include "worker/trainer/dry_run.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <limits>
#include <mutex>
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

// What the thread that measures and the one that waits share.
struct Progress {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<MemoryAdvice> advice;
  bool done = false;

  void Put(MemoryAdvice known) {
    const std::lock_guard<std::mutex> lock(mutex);
    advice = std::move(known);
  }
  void End() {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    ended.notify_all();
  }
};

void Measure(const TrainConfig& config, std::shared_ptr<const Dataset> data, int world_size,
             Progress* progress) {
  try {
    // What the weights are does not matter here, and their file may be gone after a resume.
    absl::StatusOr<PlannedJob> job = PlanJob(config, world_size, /*resumed=*/true, std::move(data));
    if (!job.ok()) return;
    absl::StatusOr<MemoryAdvice> advice =
        PlanMemory(&*job->model, *job->update, config, job->train_data->spec(), kOptionsSeconds,
                   [progress](MemoryAdvice known) { progress->Put(std::move(known)); });
    if (advice.ok()) progress->Put(*std::move(advice));
  } catch (const std::exception&) {
    // The CPU's memory is full, too, or a module raised: what is known by then is good.
  }
}

}  // namespace

std::optional<MemoryAdvice> DryRun(const TrainConfig& config, std::shared_ptr<const Dataset> data,
                                   int world_size, int local_ranks, int64_t weight_bytes) {
  if (data == nullptr) return std::nullopt;
  if (HostMemoryAvailable() < kModelCopies * weight_bytes * local_ranks) return std::nullopt;
  const auto progress = std::make_shared<Progress>();
  try {
    std::thread([progress, config, data = std::move(data), world_size]() mutable {
      Measure(config, std::move(data), world_size, progress.get());
      progress->End();
    }).detach();
  } catch (const std::exception&) {  // no memory for a thread
    return std::nullopt;
  }
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->ended.wait_for(lock, kPatience, [&] { return progress->done; });
  return progress->advice;
}

}  // namespace ddprun
