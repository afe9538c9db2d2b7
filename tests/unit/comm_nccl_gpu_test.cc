// NCCL on real GPUs, one forked process a GPU (the parent never touches CUDA). Skipped without a
// GPU; what needs two is skipped with one.
#include <cuda_runtime.h>
#include <glob.h>

#include <cstdint>
#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/shared_exchange.h"
#include "worker/comm/communicator.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

int CountGpus() {
  glob_t found = {};
  const int count =
      glob("/dev/nvidia[0-9]*", 0, nullptr, &found) == 0 ? static_cast<int>(found.gl_pathc) : 0;
  globfree(&found);
  return std::min(count, 4);
}

CommunicatorOptions Options(int rank, int size, double timeout_seconds = 60) {
  CommunicatorOptions options;
  options.name = "gpu";
  options.rank = rank;
  options.size = size;
  options.timeout_seconds = timeout_seconds;
  options.device = rank % std::max(1, CountGpus());
  return options;
}

// Device memory of float32.
class Floats {
 public:
  explicit Floats(const std::vector<float>& values) : count_(values.size()) {
    cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(float) + 1);
    cudaMemcpy(data_, values.data(), count_ * sizeof(float), cudaMemcpyHostToDevice);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { cudaFree(data_); }
  float* get() { return data_; }
  std::vector<float> Read() const {
    std::vector<float> values(count_);
    cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  size_t count_;
  float* data_ = nullptr;
};

// The ranks' own device is current, as in a trainer.
std::string WithCommunicator(SharedExchange& exchange, int rank, int size,
                             const std::function<std::string(Communicator&)>& body) {
  const CommunicatorOptions options = Options(rank, size);
  cudaSetDevice(options.device);
  auto made = CreateNcclCommunicator(options, exchange.Get());
  if (!made.ok()) return made.status().ToString();
  return body(**made);
}

std::string RunEveryOperation(Communicator& communicator) {
  const int size = communicator.size();
  const auto rank = static_cast<float>(communicator.rank());
  const float sum = static_cast<float>(size * (size - 1)) / 2;
  for (size_t count : {size_t{1}, size_t{7}, size_t{1'000'000}}) {
    Floats data(std::vector<float>(count, rank));
    absl::Status status =
        communicator.AllReduce(data.get(), count, DataType::kFloat32, ReduceOp::kSum)->WaitHost();
    if (!status.ok()) return status.ToString();
    if (data.Read() != std::vector<float>(count, sum)) return "all_reduce is wrong";
    // Wait leaves it to the stream: the default one here, on which the copy of Read is made.
    status = communicator.AllReduce(data.get(), count, DataType::kFloat32, ReduceOp::kAvg)->Wait();
    if (!status.ok()) return status.ToString();
    if (data.Read() != std::vector<float>(count, sum)) return "the mean is wrong";
  }
  Floats one({rank});
  Floats all(std::vector<float>(static_cast<size_t>(size), -1));
  communicator.AllGather(one.get(), all.get(), 1, DataType::kFloat32);
  absl::Status status =
      communicator.Broadcast(one.get(), 1, DataType::kFloat32, size - 1)->WaitHost();
  if (!status.ok()) return status.ToString();
  std::vector<float> expected(static_cast<size_t>(size));
  std::iota(expected.begin(), expected.end(), 0.0F);
  if (all.Read() != expected) return "all_gather is wrong";
  if (one.Read() != std::vector<float>{static_cast<float>(size - 1)}) return "broadcast is wrong";
  status = communicator.Barrier()->WaitHost();
  return status.ok() ? "" : status.ToString();
}

TEST(NcclGpu, EveryOperationIsRightOnOneGpuAndOnAll) {
  const int gpus = CountGpus();
  if (gpus == 0) GTEST_SKIP() << "no GPU";
  for (int size : std::set<int>{1, gpus}) {
    SharedExchange exchange;
    EXPECT_THAT(RunProcesses(size,
                             [&](int rank) {
                               return WithCommunicator(exchange, rank, size, RunEveryOperation);
                             }),
                Each(""));
  }
}

TEST(NcclGpu, CrossedSendsInOneGroupDoNotBlockEachOther) {
  const int size = CountGpus();
  if (size < 2) GTEST_SKIP() << "needs two GPUs";
  SharedExchange exchange;
  const auto results = RunProcesses(size, [&](int rank) {
    return WithCommunicator(exchange, rank, size, [&](Communicator& communicator) -> std::string {
      const size_t count = 32'000'000;  // 128 MB, more than NCCL buffers
      const int next = (rank + 1) % size;
      const int previous = (rank + size - 1) % size;
      Floats outgoing(std::vector<float>(count, static_cast<float>(rank)));
      Floats incoming(std::vector<float>(count, -1));
      communicator.GroupStart();
      communicator.Send(outgoing.get(), count, DataType::kFloat32, next);
      WorkPtr inside = communicator.Receive(incoming.get(), count, DataType::kFloat32, previous);
      communicator.GroupEnd();
      const absl::Status status = inside->WaitHost();
      if (!status.ok()) return status.ToString();
      return incoming.Read() == std::vector<float>(count, static_cast<float>(previous)) ? ""
                                                                                        : "wrong";
    });
  });
  EXPECT_THAT(results, Each(""));
}

// TR42, L65, S26, A3: ncclCommInitRank can block for ever.
TEST(NcclGpu, ConnectingEndsAtTheDeadlineWhenAPeerNeverComes) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  SharedExchange exchange;
  const auto results = RunProcesses(1, [&](int) {
    const absl::Time start = absl::Now();
    const auto made = CreateNcclCommunicator(Options(0, 2, 3), exchange.Get());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return absl::StrCat(made.status().ToString(), seconds < 25 ? "" : " too late");
  });
  EXPECT_THAT(results[0],
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("rank 0 of 2"),
                    HasSubstr("connect: not done after 3 s"), Not(HasSubstr("too late"))));
}

// TR40, TR41, TR43, A3: NCCL says nothing of a peer that does not join; the deadline does, and the
// host gets out.
TEST(NcclGpu, AnOperationThatAPeerDoesNotJoinEndsAtItsDeadline) {
  const int size = CountGpus();
  if (size < 2) GTEST_SKIP() << "needs two GPUs";
  SharedExchange exchange;
  const auto results = RunProcesses(2, [&](int rank) -> std::string {
    const CommunicatorOptions options = Options(rank, 2, 5);
    cudaSetDevice(options.device);
    auto made = CreateNcclCommunicator(options, exchange.Get());
    if (!made.ok()) return made.status().ToString();
    Floats data({1});
    auto& communicator = **made;
    absl::Status status =
        communicator.AllReduce(data.get(), 1, DataType::kFloat32, ReduceOp::kSum)->WaitHost();
    if (!status.ok()) return status.ToString();
    if (rank == 1) {
      (void)exchange.Get().await("test", "rank 0 is done", 30);
      communicator.Abort("the test is over");
      return "";
    }
    // Nobody waits on the host: the watcher finds it.
    status = communicator.AllReduce(data.get(), 1, DataType::kFloat32, ReduceOp::kSum)->Wait();
    if (!status.ok()) return "too early: " + status.ToString();
    cudaDeviceSynchronize();  // ends when the abort has stopped the kernel
    status = communicator.Barrier()->WaitHost();
    (void)exchange.Get().publish("test", "rank 0 is done", "");
    return status.ToString();
  });
  EXPECT_THAT(results[0], AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                                HasSubstr("all_reduce #2 (1 float32)"), HasSubstr("rank 0 of 2")));
  EXPECT_EQ(results[1], "");
}

// L67, A1: an abort has a bound.
TEST(NcclGpu, AbortEndsLaterOperationsAndReturnsAtOnce) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  SharedExchange exchange;
  const auto results = RunProcesses(1, [&](int rank) {
    return WithCommunicator(exchange, rank, 1, [&](Communicator& communicator) -> std::string {
      Floats data({1});
      absl::Status status =
          communicator.AllReduce(data.get(), 1, DataType::kFloat32, ReduceOp::kSum)->WaitHost();
      if (!status.ok()) return status.ToString();
      const absl::Time start = absl::Now();
      communicator.Abort("a peer has died");
      status =
          communicator.AllReduce(data.get(), 1, DataType::kFloat32, ReduceOp::kSum)->WaitHost();
      if (absl::Now() - start > absl::Milliseconds(100)) return "too late";
      return status.ToString();
    });
  });
  EXPECT_THAT(results[0], AllOf(HasSubstr("ABORTED"), HasSubstr("a peer has died")));
}

TEST(NcclGpu, ADeviceThatIsNotThereIsRefused) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  SharedExchange exchange;
  const auto results = RunProcesses(1, [&](int) {
    CommunicatorOptions options = Options(0, 1);
    options.device = 99;
    return CreateNcclCommunicator(options, exchange.Get()).status().ToString();
  });
  EXPECT_THAT(results[0], HasSubstr("there is no CUDA device 99"));
}

}  // namespace
}  // namespace ddprun
