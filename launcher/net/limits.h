// Bounds of what comes from the network, in one place. A reached bound is a named outcome: one line
// that names it, and the connection or message concerned is dropped; the job goes on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::net {

// One AgentBatch or CoordinatorBatch: what is gathered before it is sent. A single message may be
// larger (a trainer's config, an environment), up to kMessageBytesMax.
constexpr size_t kBatchBytesMax = 256 * 1024;
// gRPC refuses what is larger. An environment may be 2 MiB (ARG_MAX), a stack report 32 KiB for
// each of a node's workers.
constexpr int kMessageBytesMax = 16 * 1024 * 1024;

}  // namespace ddprun::net
