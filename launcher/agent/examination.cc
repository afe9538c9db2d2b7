#include "launcher/agent/examination.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "launcher/agent/keeper_facts.h"

namespace ddprun::agent {
namespace {

// The coordinator waits for twice as long.
constexpr std::chrono::seconds kStacksTime{10};

}  // namespace

Examination::Examination(std::function<void()> wake)
    : wake_(std::move(wake)), stop_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Examination::~Examination() {
  Cancel();
  close(stop_fd_);
}

void Examination::Begin(uint64_t generation) {
  Cancel();
  answer_.Clear();
  answer_.set_generation(generation);
  stage_ = Stage::kPlaces;
  question_ = true;
}

void Examination::Cancel() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
    thread_.join();
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(stop_fd_, &count, sizeof count);
  }
  stacks_ready_ = false;
  question_ = false;
  stage_ = Stage::kIdle;
}

bool Examination::Take(const Packet& packet) {
  if (packet.type() == "Places") {
    v1::WorkerPlace place = PlaceOf(packet);
    if (stage_ == Stage::kPlaces) {
      *answer_.add_workers() = std::move(place);
    } else if (stage_ == Stage::kPlacesAgain) {
      for (v1::WorkerPlace& worker : *answer_.mutable_workers()) {
        if (worker.rank() != place.rank()) continue;
        worker.set_seconds_still(place.seconds_still());
      }
    }
    return true;
  }
  if (packet.type() != "Examined") return false;
  if (stage_ == Stage::kPlaces) {
    stage_ = Stage::kStacks;
    CollectInBackground();
  } else if (stage_ == Stage::kPlacesAgain) {
    stage_ = Stage::kDone;
  }
  return true;
}

void Examination::CollectInBackground() {
  std::vector<pid_t> pids;
  for (const v1::WorkerPlace& worker : answer_.workers()) pids.push_back(worker.pid());
  thread_ = std::thread([this, pids = std::move(pids)] {
    stacks_ = CollectStacks(pids, kStacksTime, stop_fd_);
    stacks_ready_ = true;
    wake_();
  });
}

bool Examination::TakeQuestion() {
  if (stage_ == Stage::kStacks && stacks_ready_) {
    thread_.join();
    stacks_ready_ = false;
    for (int i = 0; i < answer_.workers_size(); ++i) {
      v1::WorkerPlace* worker = answer_.mutable_workers(i);
      worker->set_stack(stacks_[static_cast<size_t>(i)].text);
      worker->set_stack_source(stacks_[static_cast<size_t>(i)].source);
      worker->set_state(stacks_[static_cast<size_t>(i)].state);
    }
    stage_ = Stage::kPlacesAgain;
    question_ = true;
  }
  return std::exchange(question_, false);
}

std::optional<v1::AgentMessage> Examination::TakeAnswer() {
  if (stage_ != Stage::kDone) return std::nullopt;
  stage_ = Stage::kIdle;
  v1::AgentMessage message;
  *message.mutable_workers_examined() = std::exchange(answer_, {});
  return message;
}

}  // namespace ddprun::agent
