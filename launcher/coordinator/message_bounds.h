// Bounds of what a node's messages may hold, beyond the size of the whole: they go into memory,
// events, reports and result.json, and a node that has gone mad must not fill those.
//
// An honest agent keeps well within them, so what is over is cut without a word. Pure.
#pragma once

#include "ddprun/v1/agent.pb.h"

namespace ddprun::coordinator {

void CutToBounds(v1::AgentMessage* message);

}  // namespace ddprun::coordinator
