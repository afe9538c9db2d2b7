// Small records of all ranks, at every rank: what step edges agree on. Collective; blocks the
// training thread until it is done. All ranks pass equally many values.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace ddprun {

// By rank. `communicator` may be null for one rank; `device` is what it reduces on.
absl::StatusOr<std::vector<std::vector<int64_t>>> GatherIntegers(const std::vector<int64_t>& mine,
                                                                 Communicator* communicator,
                                                                 const at::Device& device);
absl::StatusOr<std::vector<std::vector<double>>> GatherNumbers(const std::vector<double>& mine,
                                                               Communicator* communicator,
                                                               const at::Device& device);
// Cut to 255 bytes.
absl::StatusOr<std::vector<std::string>> GatherText(const std::string& mine,
                                                    Communicator* communicator,
                                                    const at::Device& device);

// "rank 3", "ranks 0-2, 5".
std::string RankList(const std::vector<int>& ranks);

}  // namespace ddprun
