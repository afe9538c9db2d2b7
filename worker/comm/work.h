// Work of communicators that compute on the host: a status that arrives once.
//
// Threads: any. Complete is called exactly once, by the communicator's thread.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"

namespace ddprun {

class HostWork : public Work {
 public:
  absl::Status Wait() override;
  absl::Status WaitHost() override { return Wait(); }
  bool Done() override;
  void Complete(absl::Status status);

 private:
  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// A Work that is done already.
WorkPtr CompletedWork(absl::Status status);

}  // namespace ddprun
