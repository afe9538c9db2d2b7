// The record of a failed generation: which rank or node is to blame, and what is known of it. Pure.
#pragma once

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

// Of the state's generation, of which nothing is left. `before_start`: it had not got going.
FailureRecord MakeFailure(const State& state, bool before_start);

}  // namespace ddprun::coordinator
