// The keeper in reserve: before there is a generation for it, it holds a preloader and waits for
// the agent's Begin (proto/keeper_protocol.md, "Preloaded start"). The end of the control socket
// ends it.
//
// Threads: the keeper's alone; nothing else of the keeper exists yet.
#pragma once

#include "launcher/keeper/preloader.h"
#include "launcher/keeper/spec.h"

namespace ddprun::keeper {

// Starts the preloader, tells the agent Preloaded or PreloadFailed, and waits for Begin. The
// descriptor of the real spec, or −1 when the agent has gone (nothing is left then).
int StandBy(int control, const WorkerSpec& spec, const StartContext& context, Preloader* preloader);

}  // namespace ddprun::keeper
