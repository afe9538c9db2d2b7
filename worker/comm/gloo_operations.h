// One queued operation of a Gloo communicator, and how it is carried out on a mesh.
//
// Threads: RunOperation belongs to the communicator's thread. It blocks until the operation is
// done, throws what Gloo throws when it fails, and leaves no buffer of Gloo behind in either case.
// Determinism: which algorithm runs, and the order of additions in it, depend on the number of
// ranks and of bytes, and on whether all ranks share a machine (shared_reduce.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gloo/context.h"
#include "worker/comm/communicator.h"
#include "worker/comm/shared_reduce.h"
#include "worker/comm/work.h"

namespace ddprun {

enum class OperationKind { kAllReduce, kBroadcast, kAllGather, kSend, kReceive, kBarrier, kGroup };

struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  uint64_t sequence = 0;  // 1, 2, …; collectives and point-to-point operations are counted apart
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  DataType type = DataType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;                    // broadcast: the root
  std::vector<Operation> members;  // kGroup
  std::shared_ptr<HostWork> work;
};

const char* OperationName(OperationKind kind);
bool IsPointToPoint(OperationKind kind);

// "all_reduce #17 (4000 float32)", for messages.
std::string DescribeOperation(const Operation& operation);

// `shared`: carries out all-reduces where it is there; null: Gloo does.
void RunOperation(const std::shared_ptr<gloo::Context>& context, SharedReduce* shared,
                  const Operation& operation);

}  // namespace ddprun
