// Communicator over Gloo: one thread that connects, carries out the queued operations in order, and
// says goodbye.
//
// While the queue is empty that thread sleeps in the mesh, where it also learns of a peer that
// dies. Abort leaves the reason in failure_ and wakes the mesh, which gives up whatever it waits
// for. Invariant: failure_ is set once and ends everything that is queued then and later.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gloo/context.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_operations.h"
#include "worker/comm/message_mesh.h"
#include "worker/comm/shared_reduce.h"

namespace ddprun {

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(const CommunicatorOptions& options);
  // Runs what is queued to its end, then leaves. Call Abort first to give up instead.
  ~GlooCommunicator() override;
  absl::Status Connect(const Exchange& exchange);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  const std::string& name() const override { return options_.name; }
  const char* AllReducePath() const override { return shared_ ? "shared memory" : "TCP"; }
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
  WorkPtr Add(Operation operation);
  WorkPtr Enqueue(Operation operation);
  void RunThread();
  // The next queued operation; false when there is none and none will come.
  bool NextOperation(Operation& operation);
  absl::Status RunOne(const Operation& operation);
  absl::Status CurrentFailure();
  // Sets the failure because of `why` unless there is one; returns the one that counts.
  absl::Status Fail(absl::StatusCode code, const std::string& what, const std::string& why);
  std::string Prefix() const;
  void Observe(const Operation& operation, bool finished) const;

  const CommunicatorOptions options_;
  const absl::Duration timeout_;
  std::unique_ptr<MessageMesh> mesh_;       // the thread's, except Wake
  std::shared_ptr<gloo::Context> context_;  // the thread's
  std::unique_ptr<SharedReduce> shared_;    // the thread's; null: not all ranks share a machine

  // Of the queueing thread.
  std::unique_ptr<Operation> group_;
  uint64_t collectives_ = 0;
  uint64_t transfers_ = 0;

  absl::Mutex mutex_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) =
      false;  // the thread sleeps, or is about to, and wants to be woken
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ddprun
