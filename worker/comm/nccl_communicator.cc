#include "worker/comm/nccl_communicator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/comm/work.h"

namespace ddprun {
namespace {

constexpr absl::Duration kWatchPause = absl::Milliseconds(50);
// How long a destructor waits for NCCL before it leaves it behind; the process ends soon after.
constexpr absl::Duration kEndLimit = absl::Seconds(10);

ncclDataType_t NcclType(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUInt8:
      return ncclUint8;
  }
  std::abort();
}

ncclRedOp_t NcclOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
  }
  std::abort();
}

std::string Detail(size_t count, DataType type) {
  return absl::StrCat(" (", count, " ", DataTypeName(type), ")");
}

}  // namespace

// Handed out by operations inside a group; filled by GroupEnd.
class NcclCommunicator::GroupWork : public Work {
 public:
  absl::Status Wait() override { return work == nullptr ? Early() : work->Wait(); }
  absl::Status WaitHost() override { return work == nullptr ? Early() : work->WaitHost(); }
  bool Done() override { return work != nullptr && work->Done(); }
  WorkPtr work;

 private:
  static absl::Status Early() {
    return absl::FailedPreconditionError("an operation of a group was waited for before GroupEnd");
  }
};

NcclCommunicator::NcclCommunicator(const CommunicatorOptions& options)
    : options_(options),
      timeout_(absl::Seconds(options.timeout_seconds)),
      state_(std::make_shared<NcclState>(options)) {}

absl::Status NcclCommunicator::Connect(const Exchange& exchange) {
  const absl::Time deadline = absl::Now() + timeout_;
  const DeviceScope scope(options_.device);
  int least = 0;
  int greatest = 0;
  absl::Status status =
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
  if (status.ok()) {
    status = CudaStatus(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                        absl::StrCat("making a stream on device ", options_.device));
  }
  if (status.ok()) {
    status =
        CudaStatus(cudaMalloc(reinterpret_cast<void**>(&barrier_), sizeof(float)), "cudaMalloc");
  }
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(state_->Prefix(), "connect: ", status.message()));
  }
  const absl::StatusOr<ncclUniqueId> id = ExchangeUniqueId(exchange);
  if (!id.ok()) {
    return absl::Status(id.status().code(),
                        absl::StrCat(state_->Prefix(), "connect: ", id.status().message()));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  status = state_->Call("connect", deadline, [&](ncclComm_t* comm) {
    return ncclCommInitRankConfig(comm, options_.size, *id, options_.rank, &config);
  });
  if (status.ok()) watcher_ = std::thread([this] { Watch(); });
  return status;
}

absl::StatusOr<ncclUniqueId> NcclCommunicator::ExchangeUniqueId(const Exchange& exchange) {
  constexpr char kName[] = "nccl_unique_id";
  ncclUniqueId id = {};
  if (options_.rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      return absl::UnavailableError(
          absl::StrCat("making a unique ID: NCCL says: ", ncclGetErrorString(result)));
    }
    if (options_.size == 1) return id;
    absl::Status status =
        exchange.publish(options_.name, kName, std::string(id.internal, sizeof(id.internal)));
    if (!status.ok()) return status;
    return id;
  }
  const auto bytes = exchange.await(options_.name, kName, options_.timeout_seconds);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat("waiting for the unique ID of rank 0: ",
                                                            bytes.status().message()));
  }
  if (bytes->size() != sizeof(id.internal)) {
    return absl::InternalError(absl::StrCat("a unique ID has ", sizeof(id.internal),
                                            " bytes, rank 0 published ", bytes->size()));
  }
  std::memcpy(id.internal, bytes->data(), sizeof(id.internal));
  return id;
}

NcclCommunicator::~NcclCommunicator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const bool connected = watcher_.joinable();
  if (connected) watcher_.join();
  const DeviceScope scope(options_.device);
  if (connected && state_->failure().ok()) {
    (void)state_->Call("finalize", absl::Now() + kEndLimit,
                       [](ncclComm_t* comm) { return ncclCommFinalize(*comm); });
  }
  if (ncclComm_t comm = state_->Release(); comm != nullptr) ncclCommDestroy(comm);
  // An abort that hangs holds the stream; both are left behind then.
  if (!state_->WaitForAbort(kEndLimit)) return;
  {
    absl::MutexLock lock(&mutex_);
    under_way_.clear();
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (barrier_ != nullptr) cudaFree(barrier_);
}

WorkPtr NcclCommunicator::AllReduce(void* data, size_t count, DataType type, ReduceOp op) {
  return Add("all_reduce", Detail(count, type), [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(data, data, count, NcclType(type), NcclOp(op), comm, stream);
  });
}

WorkPtr NcclCommunicator::Broadcast(void* data, size_t count, DataType type, int root) {
  return Add("broadcast", Detail(count, type), [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(data, data, count, NcclType(type), root, comm, stream);
  });
}

WorkPtr NcclCommunicator::AllGather(const void* input, void* output, size_t count, DataType type) {
  return Add("all_gather", Detail(count, type), [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(input, output, count, NcclType(type), comm, stream);
  });
}

WorkPtr NcclCommunicator::Send(const void* data, size_t count, DataType type, int peer) {
  return Add("send", absl::StrCat(" to rank ", peer, Detail(count, type)),
             [=](ncclComm_t comm, cudaStream_t stream) {
               return ncclSend(data, count, NcclType(type), peer, comm, stream);
             });
}

WorkPtr NcclCommunicator::Receive(void* data, size_t count, DataType type, int peer) {
  return Add("receive", absl::StrCat(" from rank ", peer, Detail(count, type)),
             [=](ncclComm_t comm, cudaStream_t stream) {
               return ncclRecv(data, count, NcclType(type), peer, comm, stream);
             });
}

// NCCL has no barrier; nobody gets the sum of one element before all have given theirs.
WorkPtr NcclCommunicator::Barrier() {
  return Add("barrier", "", [this](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(barrier_, barrier_, 1, ncclFloat32, ncclSum, comm, stream);
  });
}

void NcclCommunicator::GroupStart() {
  group_ = std::make_shared<GroupWork>();
  group_calls_.clear();
}

WorkPtr NcclCommunicator::GroupEnd() {
  if (group_ == nullptr) {
    return CompletedWork(absl::FailedPreconditionError(
        absl::StrCat(state_->Prefix(), "GroupEnd without GroupStart")));
  }
  const std::shared_ptr<GroupWork> group = std::move(group_);
  group_.reset();
  group->work =
      Launch("group", absl::StrCat(" (", group_calls_.size(), " operations)"), group_calls_);
  group_calls_.clear();
  return group;
}

WorkPtr NcclCommunicator::Add(const std::string& operation, const std::string& detail,
                              NcclCall call) {
  if (group_ == nullptr) return Launch(operation, detail, {std::move(call)});
  group_calls_.push_back(std::move(call));
  return group_;
}

WorkPtr NcclCommunicator::Launch(const std::string& operation, const std::string& detail,
                                 const std::vector<NcclCall>& calls) {
  const uint64_t sequence = ++sequence_;
  const std::string what = absl::StrCat(operation, " #", sequence, detail);
  const absl::Time deadline = absl::Now() + timeout_;
  const DeviceScope scope(options_.device);
  const absl::Status failed = state_->failure();
  if (!failed.ok()) return CompletedWork(failed);
  if (options_.observer) options_.observer(operation.c_str(), sequence, false);
  auto caller = static_cast<cudaStream_t>(
      options_.current_stream ? options_.current_stream(options_.device) : nullptr);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(caller, &capture);
  absl::StatusOr<cudaEvent_t> event = state_->TakeEvent();
  if (!event.ok()) return CompletedWork(event.status());
  const auto fail = [&](const absl::Status& status) {
    state_->ReturnEvent(*event);
    return CompletedWork(state_->Fail(status.code(), what, std::string(status.message())));
  };
  absl::Status status = CudaStatus(cudaEventRecord(*event, caller), "recording an event");
  if (status.ok())
    status = CudaStatus(cudaStreamWaitEvent(stream_, *event, 0), "waiting for an event");
  if (!status.ok()) return fail(status);
  status = state_->Call(what, deadline, [&](ncclComm_t* comm) {
    if (calls.size() == 1) return calls.front()(*comm, stream_);
    ncclResult_t result = ncclGroupStart();
    for (size_t i = 0; i < calls.size(); ++i) {
      const ncclResult_t one = calls[i](*comm, stream_);
      if (result == ncclSuccess && one != ncclInProgress) result = one;
    }
    const ncclResult_t end = ncclGroupEnd();
    return result == ncclSuccess ? end : result;
  });
  if (!status.ok()) return fail(status);
  status = CudaStatus(cudaEventRecord(*event, stream_), "recording an event");
  if (!status.ok()) return fail(status);
  const bool captured = capture != cudaStreamCaptureStatusNone;
  auto work =
      std::make_shared<NcclWork>(state_, what, operation, sequence, *event, deadline, captured);
  if (!captured) {
    absl::MutexLock lock(&mutex_);
    under_way_.push_back(work);
  }
  return work;
}

void NcclCommunicator::Abort(const std::string& reason) {
  (void)state_->Fail(absl::StatusCode::kAborted, "aborted", reason);
}

void NcclCommunicator::Watch() {
  const DeviceScope scope(options_.device);
  while (true) {
    std::shared_ptr<NcclWork> oldest;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !under_way_.empty();
      };
      mutex_.Await(absl::Condition(&wanted));
      if (stopping_) return;
      oldest = under_way_.front();
    }
    if (!oldest->Look()) {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kWatchPause);
      continue;
    }
    if (!state_->failure().ok()) return;
    if (options_.observer) {
      options_.observer(oldest->operation().c_str(), oldest->sequence(), true);
    }
    absl::MutexLock lock(&mutex_);
    under_way_.pop_front();
  }
}

}  // namespace ddprun
