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

// Ranks of one host that said the same. In the order of their first ranks.
struct RankGroup {
  std::string text;
  std::string host;
  std::vector<int> ranks;
};
std::vector<RankGroup> GroupRanks(const std::vector<std::string>& texts,
                                  const std::vector<std::string>& hosts);

// "rank 3", "ranks 0-2, 5".
std::string RankList(const std::vector<int>& ranks);

}  // namespace ddprun
