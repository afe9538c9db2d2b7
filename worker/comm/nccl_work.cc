// Waiting for an NCCL operation, on the GPU and on the host.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/comm/nccl_communicator.h"

namespace ddprun {
namespace {

// A host that waits for microseconds should not sleep; one that waits for a step may.
constexpr absl::Duration kSpin = absl::Microseconds(200);
constexpr absl::Duration kPause = absl::Microseconds(50);

}  // namespace

absl::Status NcclWork::Wait() {
  const CommunicatorOptions& options = state_->options();
  const DeviceScope scope(options.device);
  absl::Status status = state_->Check(what_);
  if (!status.ok()) return status;
  auto stream = static_cast<cudaStream_t>(
      options.current_stream ? options.current_stream(options.device) : nullptr);
  return CudaStatus(cudaStreamWaitEvent(stream, end_, 0), what_);
}

absl::Status NcclWork::WaitHost() {
  if (captured_) {
    return absl::FailedPreconditionError(absl::StrCat(
        state_->Prefix(), what_, ": was captured into a graph; the host cannot wait for it"));
  }
  const DeviceScope scope(state_->options().device);
  const absl::Time start = absl::Now();
  while (!Look()) {
    if (absl::Now() - start < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kPause);
    }
  }
  return state_->failure();
}

bool NcclWork::Done() {
  if (captured_) return false;
  const DeviceScope scope(state_->options().device);
  return Look();
}

bool NcclWork::Look() {
  const cudaError_t queried = cudaEventQuery(end_);
  if (queried == cudaSuccess) return true;
  if (queried != cudaErrorNotReady) {
    (void)state_->Fail(absl::StatusCode::kUnavailable, what_,
                       absl::StrCat("CUDA says: ", cudaGetErrorString(queried)));
    return true;
  }
  if (!state_->Check(what_).ok()) return true;
  if (absl::Now() < deadline_) return false;
  (void)state_->Fail(absl::StatusCode::kDeadlineExceeded, what_,
                     absl::StrCat("not done after ", state_->options().timeout_seconds,
                                  " s; another rank is late, stopped, or does something else"));
  return true;
}

}  // namespace ddprun
