// A transport for Gloo's collectives over a MessageMesh.
//
// Why not Gloo's own TCP transport: its deadlines run anew for each message, it wakes 100 times a
// second, it does not tell of a peer that dies between operations, a wait on a half-received
// message stays asleep when the peer dies, and Debian's package lacks the headers to build on it.
// Gloo's algorithms ask no more of a transport than buffers that can be sent, received and waited
// for. Threads: that of the mesh. Errors: MeshError, which passes through Gloo's collectives.
#pragma once

#include <memory>

#include "gloo/context.h"
#include "worker/comm/message_mesh.h"

namespace ddprun {

// The mesh outlives the context and all buffers made from it.
std::shared_ptr<gloo::Context> MakeGlooContext(int rank, int size, MessageMesh* mesh);

}  // namespace ddprun
