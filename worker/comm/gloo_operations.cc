#include "worker/comm/gloo_operations.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "worker/comm/reduce_functions.h"

namespace ddprun {
namespace {

using gloo::transport::UnboundBuffer;

// Messages between two ranks match in the order in which they are posted.
constexpr uint64_t kPointToPointSlot = uint64_t{0x70} << 56;

uint32_t Tag(const Operation& operation) {
  return static_cast<uint32_t>(operation.sequence);
}

// Calls use(T*) with an unsigned type of the element's size: Gloo's options ask for a type only to
// know that size.
template <typename Use>
void WithElement(DataType type, Use use) {
  switch (DataTypeBytes(type)) {
    case 1:
      return use(static_cast<uint8_t*>(nullptr));
    case 2:
      return use(static_cast<uint16_t*>(nullptr));
    case 4:
      return use(static_cast<uint32_t*>(nullptr));
    case 8:
      return use(static_cast<uint64_t*>(nullptr));
    default:
      std::abort();
  }
}

void RunAllReduce(const std::shared_ptr<gloo::Context>& context, const Operation& operation) {
  gloo::AllreduceOptions options(context);
  WithElement(operation.type, [&]<typename T>(T*) {
    options.setOutput(static_cast<T*>(operation.output), operation.count);
  });
  options.setReduceFunction(FindReduceFunction(operation.type, operation.op));
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setTag(Tag(operation));
  gloo::allreduce(options);
  if (operation.op == ReduceOp::kAvg) {
    DivideBy(operation.output, operation.count, operation.type, context->size);
  }
}

void RunBroadcast(const std::shared_ptr<gloo::Context>& context, const Operation& operation) {
  gloo::BroadcastOptions options(context);
  WithElement(operation.type, [&]<typename T>(T*) {
    options.setOutput(static_cast<T*>(operation.output), operation.count);
  });
  options.setRoot(operation.peer);
  options.setTag(Tag(operation));
  gloo::broadcast(options);
}

void RunAllGather(const std::shared_ptr<gloo::Context>& context, const Operation& operation) {
  gloo::AllgatherOptions options(context);
  WithElement(operation.type, [&]<typename T>(T*) {
    // Gloo reads the input and never writes it; its options lack a const.
    auto* input = static_cast<T*>(const_cast<void*>(operation.input));
    const size_t all = operation.count * static_cast<size_t>(context->size);
    options.setInput(input, operation.count);
    options.setOutput(static_cast<T*>(operation.output), all);
  });
  options.setTag(Tag(operation));
  gloo::allgather(options);
}

void RunBarrier(const std::shared_ptr<gloo::Context>& context, const Operation& operation) {
  gloo::BarrierOptions options(context);
  options.setTag(Tag(operation));
  gloo::barrier(options);
}

// A send or receive that is under way. Moves with its buffer, which Gloo keeps by address.
struct Transfer {
  std::unique_ptr<UnboundBuffer> buffer;
  bool is_send;
};

Transfer Post(const std::shared_ptr<gloo::Context>& context, const Operation& operation) {
  const size_t bytes = operation.count * DataTypeBytes(operation.type);
  if (operation.kind == OperationKind::kSend) {
    auto buffer = context->createUnboundBuffer(const_cast<void*>(operation.input), bytes);
    buffer->send(operation.peer, kPointToPointSlot);
    return {std::move(buffer), true};
  }
  auto buffer = context->createUnboundBuffer(operation.output, bytes);
  buffer->recv(operation.peer, kPointToPointSlot);
  return {std::move(buffer), false};
}

void Finish(const Transfer& transfer) {
  if (transfer.is_send) {
    transfer.buffer->waitSend();
  } else {
    transfer.buffer->waitRecv();
  }
}

void RunGroup(const std::shared_ptr<gloo::Context>& context, SharedReduce* shared,
              const Operation& group) {
  std::vector<Transfer> transfers;
  for (const Operation& member : group.members) {
    if (IsPointToPoint(member.kind)) transfers.push_back(Post(context, member));
  }
  for (const Operation& member : group.members) {
    if (!IsPointToPoint(member.kind)) RunOperation(context, shared, member);
  }
  for (const Transfer& transfer : transfers) Finish(transfer);
}

}  // namespace

const char* OperationName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kSend:
      return "send";
    case OperationKind::kReceive:
      return "receive";
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kGroup:
      return "group";
  }
  std::abort();
}

bool IsPointToPoint(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}

std::string DescribeOperation(const Operation& operation) {
  std::string text = absl::StrCat(OperationName(operation.kind), " #", operation.sequence);
  switch (operation.kind) {
    case OperationKind::kBarrier:
      return text;
    case OperationKind::kGroup:
      return absl::StrCat(text, " (", operation.members.size(), " operations)");
    case OperationKind::kSend:
      absl::StrAppend(&text, " to rank ", operation.peer);
      break;
    case OperationKind::kReceive:
      absl::StrAppend(&text, " from rank ", operation.peer);
      break;
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast:
    case OperationKind::kAllGather:
      break;
  }
  return absl::StrCat(text, " (", operation.count, " ", DataTypeName(operation.type), ")");
}

void RunOperation(const std::shared_ptr<gloo::Context>& context, SharedReduce* shared,
                  const Operation& operation) {
  // Gloo refuses empty buffers. Every rank has the same count, so none waits for one that leaves
  // here.
  if (operation.count == 0 && operation.kind != OperationKind::kBarrier &&
      operation.kind != OperationKind::kGroup) {
    return;
  }
  switch (operation.kind) {
    case OperationKind::kAllReduce:
      if (shared == nullptr) return RunAllReduce(context, operation);
      return shared->AllReduce(operation.output, operation.count, operation.type, operation.op,
                               operation.sequence);
    case OperationKind::kBroadcast:
      return RunBroadcast(context, operation);
    case OperationKind::kAllGather:
      return RunAllGather(context, operation);
    case OperationKind::kSend:
    case OperationKind::kReceive:
      return Finish(Post(context, operation));
    case OperationKind::kBarrier:
      return RunBarrier(context, operation);
    case OperationKind::kGroup:
      return RunGroup(context, shared, operation);
  }
}

}  // namespace ddprun
