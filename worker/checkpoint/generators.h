// The random generators that a rank draws from: LibTorch's of the CPU and, for training on a GPU,
// that of the rank's own GPU. Under the names that a checkpoint has for their states: "cpu",
// "cuda". One thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/model.h"

namespace ddprun {

// Both begin anew from this seed.
void SeedGenerators(uint64_t seed, const at::Device& device);

// Copies of the states as they are: rows of bytes in host memory, whose sizes never change.
std::vector<NamedTensor> GeneratorStates(const at::Device& device);
void SetGeneratorStates(const std::vector<NamedTensor>& states, const at::Device& device);

}  // namespace ddprun
