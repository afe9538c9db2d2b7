#include "worker/comm/nccl_state.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ddprun {
namespace {

// Between two looks at a call that is in progress. Most take microseconds; connecting takes 0.1 s.
constexpr absl::Duration kPollAtOnce = absl::Microseconds(200);
constexpr absl::Duration kPollPause = absl::Microseconds(50);

}  // namespace

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": CUDA says: ", cudaGetErrorString(error)));
}

DeviceScope::DeviceScope(int device) {
  if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = -1;
  if (previous_ != device) cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

NcclState::~NcclState() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

std::string NcclState::Prefix() const {
  return absl::StrCat("communicator '", options_.name, "' (nccl), rank ", options_.rank, " of ",
                      options_.size, ": ");
}

absl::Status NcclState::Call(const std::string& what, absl::Time deadline,
                             const std::function<ncclResult_t(ncclComm_t*)>& call) {
  ncclResult_t result;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    result = call(&comm_);
  }
  if (result == ncclInProgress || result == ncclSuccess) return Poll(what, deadline);
  return Fail(absl::StatusCode::kUnavailable, what,
              absl::StrCat("NCCL says: ", ncclGetErrorString(result)));
}

absl::Status NcclState::Poll(const std::string& what, absl::Time deadline) {
  const absl::Time start = absl::Now();
  while (true) {
    ncclResult_t state = ncclSuccess;
    std::string detail;
    {
      absl::MutexLock lock(&mutex_);
      if (!failure_.ok()) return failure_;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      if (asked != ncclSuccess) state = asked;
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) detail = ncclGetLastError(comm_);
    }
    if (state != ncclInProgress) {
      return Fail(absl::StatusCode::kUnavailable, what,
                  absl::StrCat("NCCL says: ", ncclGetErrorString(state), " ", detail));
    }
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return Fail(absl::StatusCode::kDeadlineExceeded, what,
                  absl::StrCat("not done after ", options_.timeout_seconds,
                               " s; another rank is late, stopped, or does something else"));
    }
    if (now - start < kPollAtOnce) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kPollPause);
    }
  }
}

absl::Status NcclState::Check(const std::string& what) {
  ncclResult_t state = ncclSuccess;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (comm_ == nullptr || ncclCommGetAsyncError(comm_, &state) != ncclSuccess) {
      return absl::OkStatus();
    }
  }
  if (state == ncclSuccess || state == ncclInProgress) return absl::OkStatus();
  return Fail(absl::StatusCode::kUnavailable, what,
              absl::StrCat("NCCL says: ", ncclGetErrorString(state)));
}

absl::Status NcclState::Fail(absl::StatusCode code, const std::string& what,
                             const std::string& why) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  failure_ = absl::Status(code, absl::StrCat(Prefix(), what, ": ", why));
  if (comm_ == nullptr) return failure_;
  aborting_ = true;
  // The stream is idle milliseconds after the abort has begun; nobody waits for its end but the
  // destructor, for a while.
  std::thread([self = shared_from_this(), comm = std::exchange(comm_, nullptr)] {
    const DeviceScope scope(self->options_.device);
    ncclCommAbort(comm);
    absl::MutexLock done(&self->mutex_);
    self->aborting_ = false;
  }).detach();
  return failure_;
}

absl::Status NcclState::failure() {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

ncclComm_t NcclState::Release() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(comm_, nullptr);
}

bool NcclState::WaitForAbort(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !aborting_; };
  return mutex_.AwaitWithTimeout(absl::Condition(&ended), limit);
}

absl::StatusOr<cudaEvent_t> NcclState::TakeEvent() {
  {
    absl::MutexLock lock(&mutex_);
    if (!events_.empty()) {
      cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event;
  absl::Status status =
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  if (!status.ok()) return status;
  return event;
}

void NcclState::ReturnEvent(cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  events_.push_back(event);
}

}  // namespace ddprun
