// LibTorch reports by exceptions; here they become a status. Any thread.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "worker/trainer/session.h"

namespace ddprun {

// What `work` returns, or what it threw: RESOURCE_EXHAUSTED with advice where memory ran out,
// FAILED_PRECONDITION where a restart would meet the same, INTERNAL else.
absl::Status CatchingAll(const Session& session, const std::function<absl::Status()>& work);

}  // namespace ddprun
