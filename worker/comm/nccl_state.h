// What an NCCL communicator, its works and its watcher share: the ncclComm_t, the failure that
// ended it, spare events.
//
// NCCL runs non-blocking: a call may return ncclInProgress, and is polled for under a deadline.
// ncclCommAbort frees the ncclComm_t and takes half a second, so it runs in a thread of its own,
// and nobody uses the ncclComm_t once `failure` is set: every use is inside Call or Poll, which
// hold the mutex and look. Threads: any. Held by shared_ptr, since an abort that hangs in the
// driver is left behind with it.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace ddprun {

absl::Status CudaStatus(cudaError_t error, const std::string& what);

// Makes a device current in a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = -1;
};

class NcclState : public std::enable_shared_from_this<NcclState> {
 public:
  explicit NcclState(const CommunicatorOptions& options) : options_(options) {}
  ~NcclState();

  const CommunicatorOptions& options() const { return options_; }
  std::string Prefix() const;

  // Makes an NCCL call and polls until it has finished or the deadline passes; failure ends the
  // communicator. `call` gets the place of the ncclComm_t, which the first call fills.
  absl::Status Call(const std::string& what, absl::Time deadline,
                    const std::function<ncclResult_t(ncclComm_t*)>& call);
  // The failure, after asking NCCL for an error that came meanwhile.
  absl::Status Check(const std::string& what);

  // Ends the communicator for this reason and starts the abort, unless it has ended already;
  // returns what counts.
  absl::Status Fail(absl::StatusCode code, const std::string& what, const std::string& why);
  absl::Status failure();

  // Takes the ncclComm_t out after an orderly end, so that no abort follows.
  ncclComm_t Release();
  // False when an abort is still running after the limit.
  bool WaitForAbort(absl::Duration limit);

  absl::StatusOr<cudaEvent_t> TakeEvent();
  void ReturnEvent(cudaEvent_t event);

 private:
  absl::Status Poll(const std::string& what, absl::Time deadline);

  const CommunicatorOptions options_;
  absl::Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool aborting_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ddprun
