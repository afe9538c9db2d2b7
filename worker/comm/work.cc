#include "worker/comm/work.h"

#include <utility>

namespace ddprun {

absl::Status HostWork::Wait() {
  absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  return status_;
}

bool HostWork::Done() {
  absl::MutexLock lock(&mutex_);
  return done_;
}

void HostWork::Complete(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  status_ = std::move(status);
  done_ = true;
}

WorkPtr CompletedWork(absl::Status status) {
  auto work = std::make_shared<HostWork>();
  work->Complete(std::move(status));
  return work;
}

}  // namespace ddprun
