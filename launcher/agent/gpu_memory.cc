#include "launcher/agent/gpu_memory.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ddprun::agent {

struct GpuMemoryGate::Watch {
  explicit Watch(placement::MemoryWatch w) : watch(std::move(w)) {}
  std::mutex mutex;
  placement::MemoryWatch watch;
};

namespace {

// NVML tells of no change by itself; it is asked so often, and only while a start waits.
constexpr auto kLookInterval = std::chrono::milliseconds(50);
constexpr double kWorthALineSeconds = 1;
constexpr double kNanosecondsInASecond = 1e9;

bool IsAlive(uint32_t pid) {
  return kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

// Between the loop and the thread that asks. Both hold it; whoever is last frees it.
class Inquiry {
 public:
  Inquiry() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Inquiry() {
    if (fd_ >= 0) close(fd_);
  }
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;

  int fd() const { return fd_; }  // readable once there is an answer

  void Cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  // False: cancelled.
  bool Pause() {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, kLookInterval, [this] { return cancelled_; });
  }
  void Answer(std::string line) {
    {
      const std::lock_guard lock(mutex_);
      line_ = std::move(line);
      answered_ = true;
    }
    const uint64_t one = 1;
    if (write(fd_, &one, sizeof one) < 0) return;  // readable already
  }
  bool Answered(std::string* line) {
    const std::lock_guard lock(mutex_);
    if (answered_) *line = line_;
    return answered_;
  }

 private:
  int fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  bool answered_ = false;
  std::string line_;
};

using Question = std::function<std::string(Inquiry&)>;

class GpuMemoryStep : public PreparationStep {
 public:
  GpuMemoryStep(double seconds_max, Question question)
      : seconds_max_(seconds_max),
        question_(std::move(question)),
        inquiry_(std::make_shared<Inquiry>()) {}
  ~GpuMemoryStep() override { inquiry_->Cancel(); }

  PreparationResult Advance(int64_t now_ns) override {
    using State = PreparationResult::State;
    if (deadline_ns_ == 0) {
      deadline_ns_ = now_ns + static_cast<int64_t>(seconds_max_ * kNanosecondsInASecond);
      // Not joined: it may hang in the driver, and whatever it uses it shares.
      std::thread([inquiry = inquiry_, question = std::move(question_)] {
        inquiry->Answer(question(*inquiry));
      }).detach();
    }
    if (cancelled_) return {State::kFailed, "it was stopped before its workers started"};
    std::string line;
    if (inquiry_->Answered(&line)) return {State::kReady, line};
    if (now_ns < deadline_ns_) return {State::kWorking, ""};
    return {State::kReady,
            "ddprun: the GPU driver does not say which memory is in use; the workers start all "
            "the same (is a GPU of this node broken? nvidia-smi would hang too)"};
  }
  void Cancel() override {
    cancelled_ = true;
    inquiry_->Cancel();
  }
  void AddPolls(std::vector<pollfd>* polls) const override {
    polls->push_back({inquiry_->fd(), POLLIN, 0});
  }
  int64_t NextDeadlineNs() const override { return deadline_ns_; }

 private:
  double seconds_max_;
  Question question_;
  std::shared_ptr<Inquiry> inquiry_;
  int64_t deadline_ns_ = 0;
  bool cancelled_ = false;
};

std::string AwaitFreeMemory(GpuMemoryGate::Watch& shared, Inquiry& inquiry, uint64_t generation,
                            double seconds, const std::set<uint32_t>& own) {
  const std::lock_guard lock(shared.mutex);
  placement::MemoryWatch& watch = shared.watch;
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<placement::HeldMemory> held = watch.StillHeld(own);
  while (!held.empty() && waited() < seconds) {
    if (!inquiry.Pause()) return "";
    held = watch.StillHeld(own);
  }
  if (!held.empty()) {
    watch.GiveUp(held);
    return absl::StrCat("ddprun: after ", seconds, " s of waiting, ended workers still hold ",
                        placement::DescribeHeld(held), "; generation ", generation,
                        " starts all the same");
  }
  if (waited() < kWorthALineSeconds) return "";
  return absl::StrFormat(
      "ddprun: generation %d waited %.1f s until ended workers had freed their GPU memory",
      generation, waited());
}

std::string NoteOthers(GpuMemoryGate::Watch& shared, const std::vector<std::string>& devices) {
  const std::lock_guard lock(shared.mutex);
  const auto others = shared.watch.Remember(devices);
  if (others.empty()) return "";
  return absl::StrCat("ddprun: others use these GPUs already: ", placement::DescribeHeld(others));
}

}  // namespace

GpuMemoryGate::GpuMemoryGate(std::shared_ptr<placement::Nvml> nvml) {
  if (nvml == nullptr) return;
  auto look = [gpus = std::move(nvml)](const std::string& uuid) { return gpus->MemoryOf(uuid); };
  watch_ = std::make_shared<Watch>(placement::MemoryWatch(std::move(look), IsAlive));
}

std::unique_ptr<PreparationStep> GpuMemoryGate::StepBefore(uint64_t generation,
                                                           const v1::JobSpec& spec,
                                                           const placement::NodePlan& plan) {
  const double seconds = spec.supervision().gpu_memory_wait_seconds();
  if (watch_ == nullptr || seconds <= 0 || plan.devices.empty()) return nullptr;
  if (!std::exchange(first_, false)) {
    return std::make_unique<GpuMemoryStep>(
        seconds + kDriverSecondsMax,
        [watch = watch_, generation, seconds, own = std::exchange(own_, {})](Inquiry& inquiry) {
          return AwaitFreeMemory(*watch, inquiry, generation, seconds, own);
        });
  }
  std::vector<std::string> devices;
  for (const placement::VisibleDevice& device : plan.devices) {
    if (!device.uuid.empty()) devices.push_back(device.uuid);
  }
  return std::make_unique<GpuMemoryStep>(kDriverSecondsMax, [watch = watch_, devices](Inquiry&) {
    return NoteOthers(*watch, devices);
  });
}

}  // namespace ddprun::agent
