// What the last lines of a dead worker's log speak of (v1::ExitHint): a peer that is gone, or the
// port of rank 0 that somebody else has taken.
//
// A hint makes a death a secondary one, or a restart free of charge, so a wrong one hides a cause.
// Therefore: words that a program of any kind may print ("connection reset by peer") count only
// next to the name of a library that carries collectives; a Python traceback decides alone, by the
// first exception of its last chain; and an error of the worker's own (a traceback of another kind,
// CUDA, out of memory) is never covered by what its teardown prints afterwards.
// Pure. Threads: any.
#pragma once

#include <string_view>
#include <vector>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

// Of a log's end so much is looked at.
inline constexpr size_t kHintBytesMax = 65536;

// `ports`: those that ddprun has promised to the workers (MASTER_PORT, Paddle's endpoints): a new
// generation gets others.
v1::ExitHint HintOf(std::string_view log_end, const std::vector<uint32_t>& ports);

}  // namespace ddprun::agent
