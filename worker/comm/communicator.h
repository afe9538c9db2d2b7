// Communicator: collectives among a named list of ranks, the same interface over Gloo (CPU tensors)
// and NCCL (CUDA).
//
// Every operation is asynchronous: it is queued in call order on the communicator's own thread or
// stream and returns a Work. All ranks of a communicator must queue the same operations in the same
// order. Buffers are plain memory (host memory for Gloo, device memory for NCCL); the caller keeps
// them alive until the Work is done. Threads: one thread queues; any thread may wait on a Work or
// call Abort. Deadlines: connecting and each operation end in DEADLINE_EXCEEDED after
// options.timeout_seconds; a lost peer is UNAVAILABLE. The message names communicator, rank,
// operation and sequence number. After an error every later operation fails with the same status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

enum class DataType { kFloat32, kFloat64, kFloat16, kBFloat16, kInt32, kInt64, kUInt8 };
enum class ReduceOp { kSum, kAvg, kMin, kMax };
size_t DataTypeBytes(DataType type);
const char* DataTypeName(DataType type);

// One queued operation. On CPUs Wait blocks until it is done; on GPUs Wait makes the caller's
// current stream wait (and returns errors known so far), and WaitHost blocks the calling thread.
// Both may be called more than once.
class Work {
 public:
  virtual ~Work() = default;
  virtual absl::Status Wait() = 0;
  virtual absl::Status WaitHost() = 0;
  virtual bool Done() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// How a communicator finds its peers: publish bytes under a name, await others'. Backed by
// libddprun; tests use a map.
struct Exchange {
  std::function<absl::Status(const std::string& group, const std::string& name,
                             const std::string& bytes)>
      publish;
  std::function<absl::StatusOr<std::string>(const std::string& group, const std::string& name,
                                            double timeout_seconds)>
      await;
};

struct CommunicatorOptions {
  std::string name =
      "world";   // key of the exchange group; unique among the communicators of a generation
  int rank = 0;  // position in the rank list, 0 … size−1
  int size = 1;
  double timeout_seconds = 300;  // for connecting and for each operation
  std::string host = "";         // Gloo: address to bind (empty: 127.0.0.1); NCCL: unused
  // Gloo: all-reduce through shared memory where all ranks are on one machine, and all want it.
  bool shared_memory = true;
  int device = -1;  // NCCL: CUDA device index
  // NCCL: the cudaStream_t that the calling thread computes on; empty: LibTorch's current stream of
  // the device.
  std::function<void*(int device)> current_stream;
  // Told before and after each collective, for the step page; may be empty.
  std::function<void(const char* operation, uint64_t sequence, bool finished)> observer;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  // What all-reduces go through: "shared memory", "TCP", "NCCL"; empty for a single rank. Each adds
  // up in an order of its own, so the last bits of a sum belong to it.
  virtual const char* AllReducePath() const { return ""; }

  // In place on `data`, `count` elements. kAvg divides by size() (after the sum, in the same type).
  virtual WorkPtr AllReduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  virtual WorkPtr Broadcast(void* data, size_t count, DataType type, int root) = 0;
  // output holds size() × count elements, in rank order.
  virtual WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) = 0;
  virtual WorkPtr Send(const void* data, size_t count, DataType type, int peer) = 0;
  virtual WorkPtr Receive(void* data, size_t count, DataType type, int peer) = 0;
  virtual WorkPtr Barrier() = 0;
  // Operations between GroupStart and GroupEnd progress together (sends and receives cannot block
  // each other). GroupEnd returns the Work of the whole group; the Works returned inside are the
  // same one.
  virtual void GroupStart() = 0;
  virtual WorkPtr GroupEnd() = 0;
  // Gives up: every pending and later operation fails with this reason. Returns at once.
  virtual void Abort(const std::string& reason) = 0;
};

// CPU: Debian's Gloo over TCP; all-reduces through shared memory where all ranks are on one
// machine. Connects a full mesh through the exchange.
absl::StatusOr<std::unique_ptr<Communicator>> CreateGlooCommunicator(
    const CommunicatorOptions& options, const Exchange& exchange);
// GPU: opens libddp_worker_cuda.so beside the program on first use; NOT_FOUND with the path and the
// reason where it is missing.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    const CommunicatorOptions& options, const Exchange& exchange);
// Opens that library alone: LibTorch can use GPUs from then on. For a single rank.
absl::Status OpenGpuLibrary();
// What the GPU is called: "NVIDIA H200"; "an unknown GPU" without the library.
std::string GpuName(int device);

}  // namespace ddprun
