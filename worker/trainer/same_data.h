// Do all ranks train on the same data? Each takes its part of one order of samples, so a machine
// with other files, or fewer of them, would make samples be seen twice or never, or have other
// labels, and nothing would show it. Compared before the first step, as the model is
// (model_fingerprint.h).
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/data/dataset.h"

namespace ddprun {

// "60000 samples of shape [1, 28, 28] in 10 classes, digest 0123456789abcdef".
std::string DescribeData(const Dataset& data);

// FAILED_PRECONDITION, the same on all ranks, where one differs from rank 0: names ranks, hosts and
// both descriptions. `split`: "training" or "test"; `dir`: data.dir, for the message. Pure.
absl::Status CompareData(const std::vector<std::string>& by_rank,
                         const std::vector<std::string>& hosts, const std::string& split,
                         const std::string& dir);

// The same for texts of any kind: "the ranks do not have the same <what>: …. <advice>".
absl::Status CompareOnRanks(const std::vector<std::string>& by_rank,
                            const std::vector<std::string>& hosts, const std::string& what,
                            const std::string& advice);

// Collective; `hosts` by rank.
absl::Status AgreeOnData(const Dataset& data, const std::vector<std::string>& hosts,
                         const std::string& split, const std::string& dir,
                         Communicator* communicator, const at::Device& device);

}  // namespace ddprun
