// Fingerprints of the weights, compared among the ranks: data parallel training keeps them equal to
// the last bit, so a difference means that something is broken (memory, a link, a program that
// changes weights on one rank), and that nothing that follows can be trusted.
//
// Cost: on a CPU one pass of XXH3 over the weights; elsewhere integer sums on the device, and 8
// bytes a tensor to the host. The exchange is 8 bytes a rank; only where they differ, 8 bytes a
// tensor and rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/model/model.h"

namespace ddprun {

// One number a tensor, of its bytes and their places. Equal on two ranks of the same kind of device
// exactly when the bytes are (but for a chance of 2^-64).
std::vector<int64_t> DigestTensors(const std::vector<NamedTensor>& tensors);

// Two sums modulo 2^64 over the tensor's bytes as integers, one weighted by the place; what other
// devices than CPUs use. Works on any device.
int64_t DigestBySums(const at::Tensor& tensor);

// OK when all ranks' digests are equal, else which ranks are alone, and with which tensors. Those
// that are in the minority get INTERNAL (they are to blame, and a restart from the last checkpoint
// helps), the others UNAVAILABLE; without a majority all get INTERNAL. Pure.
absl::Status CompareDigests(const std::vector<std::vector<int64_t>>& by_rank,
                            const std::vector<std::string>& names, int rank, int64_t step);

// Compares the tensors of all ranks. Collective.
absl::Status CheckFingerprints(const std::vector<NamedTensor>& tensors, int rank, int64_t step,
                               Communicator* communicator, const at::Device& device);

}  // namespace ddprun
