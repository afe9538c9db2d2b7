// Communicator of a single rank on the host: no sockets, no threads; every operation is done when
// it returns.
#pragma once

#include <memory>

#include "worker/comm/communicator.h"

namespace ddprun {

std::unique_ptr<Communicator> CreateSoloCommunicator(const CommunicatorOptions& options);

}  // namespace ddprun
