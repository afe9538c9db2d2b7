#include "worker/comm/gloo_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/comm/gloo_transport.h"
#include "worker/comm/solo_communicator.h"
#include "worker/comm/tcp_connect.h"

namespace ddprun {
namespace {

// Operations that wait in the queue; a step queues one a bucket, so more means that nobody waits
// for them.
constexpr size_t kQueuedMax = 65536;
// A goodbye is a few bytes; a peer with no room for them within this time is stuck.
constexpr absl::Duration kLeaveLimit = absl::Seconds(5);

}  // namespace

GlooCommunicator::GlooCommunicator(const CommunicatorOptions& options)
    : options_(options), timeout_(absl::Seconds(options.timeout_seconds)) {}

absl::Status GlooCommunicator::Connect(const Exchange& exchange) {
  const absl::Time deadline = absl::Now() + timeout_;
  absl::StatusOr<std::vector<Descriptor>> sockets = ConnectPeers(options_, exchange, deadline);
  if (!sockets.ok()) {
    return absl::Status(sockets.status().code(),
                        absl::StrCat(Prefix(), "connect: ", sockets.status().message()));
  }
  mesh_ = std::make_unique<MessageMesh>(options_.rank, *std::move(sockets),
                                        [this] { return CurrentFailure(); });
  context_ = MakeGlooContext(options_.rank, options_.size, mesh_.get());
  mesh_->set_deadline(deadline);
  try {
    shared_ =
        SharedReduce::Create(options_.rank, options_.size, options_.shared_memory, mesh_.get());
  } catch (const MeshError& error) {
    return absl::Status(error.code(), absl::StrCat(Prefix(), "connect: ", error.what()));
  }
  thread_ = std::thread([this] { RunThread(); });
  return absl::OkStatus();
}

GlooCommunicator::~GlooCommunicator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  mesh_->Wake();
  thread_.join();
}

std::string GlooCommunicator::Prefix() const {
  return absl::StrCat("communicator '", options_.name, "' (gloo), rank ", options_.rank, " of ",
                      options_.size, ": ");
}

void GlooCommunicator::Observe(const Operation& operation, bool finished) const {
  if (options_.observer) {
    options_.observer(OperationName(operation.kind), operation.sequence, finished);
  }
}

WorkPtr GlooCommunicator::AllReduce(void* data, size_t count, DataType type, ReduceOp op) {
  return Add(
      {.kind = OperationKind::kAllReduce, .output = data, .count = count, .type = type, .op = op});
}

WorkPtr GlooCommunicator::Broadcast(void* data, size_t count, DataType type, int root) {
  return Add({.kind = OperationKind::kBroadcast,
              .output = data,
              .count = count,
              .type = type,
              .peer = root});
}

WorkPtr GlooCommunicator::AllGather(const void* input, void* output, size_t count, DataType type) {
  return Add({.kind = OperationKind::kAllGather,
              .input = input,
              .output = output,
              .count = count,
              .type = type});
}

WorkPtr GlooCommunicator::Send(const void* data, size_t count, DataType type, int peer) {
  return Add(
      {.kind = OperationKind::kSend, .input = data, .count = count, .type = type, .peer = peer});
}

WorkPtr GlooCommunicator::Receive(void* data, size_t count, DataType type, int peer) {
  return Add({.kind = OperationKind::kReceive,
              .output = data,
              .count = count,
              .type = type,
              .peer = peer});
}

WorkPtr GlooCommunicator::Barrier() {
  return Add({.kind = OperationKind::kBarrier});
}

void GlooCommunicator::GroupStart() {
  group_ = std::make_unique<Operation>();
  group_->kind = OperationKind::kGroup;
  group_->work = std::make_shared<HostWork>();
}

WorkPtr GlooCommunicator::GroupEnd() {
  if (group_ == nullptr) {
    return CompletedWork(
        absl::FailedPreconditionError(absl::StrCat(Prefix(), "GroupEnd without GroupStart")));
  }
  const std::unique_ptr<Operation> group = std::move(group_);
  group->sequence = ++transfers_;
  return Enqueue(std::move(*group));
}

WorkPtr GlooCommunicator::Add(Operation operation) {
  const bool transfer = IsPointToPoint(operation.kind);
  operation.sequence = transfer ? ++transfers_ : ++collectives_;
  if (operation.peer < 0 || operation.peer >= options_.size ||
      (transfer && operation.peer == options_.rank)) {
    return CompletedWork(absl::InvalidArgumentError(absl::StrCat(
        Prefix(), DescribeOperation(operation), ": there is no such peer: rank ", operation.peer)));
  }
  if (group_ != nullptr) {
    operation.work = group_->work;
    group_->members.push_back(std::move(operation));
    return group_->work;
  }
  operation.work = std::make_shared<HostWork>();
  return Enqueue(std::move(operation));
}

WorkPtr GlooCommunicator::Enqueue(Operation operation) {
  WorkPtr work = operation.work;
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) {
      operation.work->Complete(failure_);
    } else if (queue_.size() >= kQueuedMax) {
      operation.work->Complete(absl::ResourceExhaustedError(
          absl::StrCat(Prefix(), DescribeOperation(operation), ": ", kQueuedMax,
                       " operations are queued already; wait for some of them")));
    } else {
      queue_.push_back(std::move(operation));
      wake = std::exchange(idle_, false);
    }
  }
  if (wake) mesh_->Wake();
  return work;
}

void GlooCommunicator::Abort(const std::string& reason) {
  (void)Fail(absl::StatusCode::kAborted, "aborted", reason);
  mesh_->Wake();
}

absl::Status GlooCommunicator::Fail(absl::StatusCode code, const std::string& what,
                                    const std::string& why) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = absl::Status(code, absl::StrCat(Prefix(), what, ": ", why));
  return failure_;
}

absl::Status GlooCommunicator::CurrentFailure() {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

void GlooCommunicator::RunThread() {
  Operation operation;
  while (NextOperation(operation)) {
    absl::Status status = CurrentFailure();
    if (status.ok()) status = RunOne(operation);
    operation.work->Complete(std::move(status));
  }
  mesh_->Leave(kLeaveLimit);
}

bool GlooCommunicator::NextOperation(Operation& operation) {
  while (true) {
    bool failed;
    {
      absl::MutexLock lock(&mutex_);
      if (!queue_.empty()) {
        operation = std::move(queue_.front());
        queue_.pop_front();
        return true;
      }
      if (stopping_) return false;
      failed = !failure_.ok();
      idle_ = !failed;
      if (failed) {
        // Nothing is queued any more; only the end is awaited.
        mutex_.Await(absl::Condition(&stopping_));
        return false;
      }
    }
    try {
      mesh_->WaitForWake();
    } catch (const MeshError& error) {
      (void)Fail(error.code(), "between operations", error.what());
    }
  }
}

absl::Status GlooCommunicator::RunOne(const Operation& operation) {
  Observe(operation, false);
  mesh_->set_deadline(absl::Now() + timeout_);
  try {
    RunOperation(context_, shared_.get(), operation);
  } catch (const MeshError& error) {
    const std::string why =
        error.code() == absl::StatusCode::kDeadlineExceeded
            ? absl::StrCat("not done after ", options_.timeout_seconds,
                           " s; another rank is late, stopped, or does something else")
            : error.what();
    return Fail(error.code(), DescribeOperation(operation), why);
  } catch (const std::exception& error) {
    return Fail(absl::StatusCode::kInternal, DescribeOperation(operation), error.what());
  }
  Observe(operation, true);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateGlooCommunicator(
    const CommunicatorOptions& options, const Exchange& exchange) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size ||
      !(options.timeout_seconds > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator '", options.name, "': rank ", options.rank, " of ", options.size,
                     " with a timeout of ", options.timeout_seconds, " s makes no sense"));
  }
  if (options.size == 1) return CreateSoloCommunicator(options);
  auto communicator = std::make_unique<GlooCommunicator>(options);
  absl::Status status = communicator->Connect(exchange);
  if (!status.ok()) return status;
  return communicator;
}

}  // namespace ddprun
