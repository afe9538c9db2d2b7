#include "worker/comm/solo_communicator.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/work.h"

namespace ddprun {
namespace {

class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(const CommunicatorOptions& options) : options_(options) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return options_.name; }

  WorkPtr AllReduce(void*, size_t, DataType, ReduceOp) override { return Done("all_reduce"); }
  WorkPtr Broadcast(void*, size_t, DataType, int root) override {
    if (root != 0) return NoPeer("broadcast", root);
    return Done("broadcast");
  }
  WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) override {
    if (count > 0 && input != output) std::memcpy(output, input, count * DataTypeBytes(type));
    return Done("all_gather");
  }
  WorkPtr Send(const void*, size_t, DataType, int peer) override { return NoPeer("send", peer); }
  WorkPtr Receive(void*, size_t, DataType, int peer) override { return NoPeer("receive", peer); }
  WorkPtr Barrier() override { return Done("barrier"); }
  void GroupStart() override {}
  WorkPtr GroupEnd() override { return Done("group"); }

  void Abort(const std::string& reason) override {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = absl::AbortedError(absl::StrCat(Prefix(), reason));
  }

 private:
  std::string Prefix() const {
    return absl::StrCat("communicator '", options_.name, "', rank 0 of 1: ");
  }

  WorkPtr NoPeer(const char* operation, int peer) {
    return CompletedWork(absl::InvalidArgumentError(
        absl::StrCat(Prefix(), operation, ": there is no such peer: rank ", peer)));
  }

  WorkPtr Done(const char* operation) {
    absl::MutexLock lock(&mutex_);
    ++sequence_;
    if (options_.observer && failure_.ok()) {
      options_.observer(operation, sequence_, false);
      options_.observer(operation, sequence_, true);
    }
    return CompletedWork(failure_);
  }

  const CommunicatorOptions options_;
  absl::Mutex mutex_;
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Communicator> CreateSoloCommunicator(const CommunicatorOptions& options) {
  return std::make_unique<SoloCommunicator>(options);
}

}  // namespace ddprun
