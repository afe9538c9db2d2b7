// Communicator over NCCL, on a stream of its own with high priority.
//
// An operation waits on the GPU for what the caller's current stream was given before, and the
// caller's stream waits for it in Work::Wait; the host waits for neither. NCCL does not tell of a
// dead peer on the same host (the kernel spins), so a watcher looks at the operations that are
// under way, 20 times a second, and ends the communicator when one is late or NCCL reports an
// error. Captured into a CUDA graph, an operation is only recorded: it has no deadline and cannot
// be waited for by the host.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_state.h"

namespace ddprun {

class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<NcclState> state, std::string what, std::string operation,
           uint64_t sequence, cudaEvent_t end, absl::Time deadline, bool captured)
      : state_(std::move(state)),
        what_(std::move(what)),
        operation_(std::move(operation)),
        sequence_(sequence),
        end_(end),
        deadline_(deadline),
        captured_(captured) {}
  ~NcclWork() override { state_->ReturnEvent(end_); }
  absl::Status Wait() override;
  absl::Status WaitHost() override;
  bool Done() override;

  // For the watcher: ends the communicator when this is late.
  bool Look();
  const std::string& operation() const { return operation_; }
  uint64_t sequence() const { return sequence_; }

 private:
  const std::shared_ptr<NcclState> state_;
  const std::string what_;  // "all_reduce #17 (4000 float32)"
  const std::string operation_;
  const uint64_t sequence_;
  const cudaEvent_t end_;
  const absl::Time deadline_;
  const bool captured_;
};

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(const CommunicatorOptions& options);
  // Ends in order when nothing has failed: waits, under a limit, for what is under way.
  ~NcclCommunicator() override;
  absl::Status Connect(const Exchange& exchange);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  const std::string& name() const override { return options_.name; }
  const char* AllReducePath() const override { return "NCCL"; }
  WorkPtr AllReduce(void* data, size_t count, DataType type, ReduceOp op) override;
  WorkPtr Broadcast(void* data, size_t count, DataType type, int root) override;
  WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) override;
  WorkPtr Send(const void* data, size_t count, DataType type, int peer) override;
  WorkPtr Receive(void* data, size_t count, DataType type, int peer) override;
  WorkPtr Barrier() override;
  void GroupStart() override;
  WorkPtr GroupEnd() override;
  void Abort(const std::string& reason) override;

 private:
  using NcclCall = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  // The Work of a group, known before it is launched.
  class GroupWork;

  WorkPtr Add(const std::string& operation, const std::string& detail, NcclCall call);
  WorkPtr Launch(const std::string& operation, const std::string& detail,
                 const std::vector<NcclCall>& calls);
  absl::StatusOr<ncclUniqueId> ExchangeUniqueId(const Exchange& exchange);
  void Watch();

  const CommunicatorOptions options_;
  const absl::Duration timeout_;
  const std::shared_ptr<NcclState> state_;
  cudaStream_t stream_ = nullptr;
  float* barrier_ = nullptr;  // one element of device memory

  // Of the queueing thread.
  std::shared_ptr<GroupWork> group_;
  std::vector<NcclCall> group_calls_;
  uint64_t sequence_ = 0;

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<NcclWork>> under_way_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace ddprun
