// MASTER_ADDR and MASTER_PORT as wished: whether this machine can have them. Looks, and keeps
// nothing.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ddprun/v1/job.pb.h"

namespace ddprun::cli {

// Where the workers of one machine reach each other: 127.0.0.1, or ::1 where only IPv6 is there.
std::string LoopbackAddress();

// INVALID_ARGUMENT names the option: an address that is another machine's or unknown, a port that
// is taken. The agent holds the port later, and finds out for itself if it was taken meanwhile.
// `option`: the one that named the address, for example --rdzv-endpoint.
absl::Status CheckMasterAddress(const v1::Launching& launching, const std::string& option);

}  // namespace ddprun::cli
