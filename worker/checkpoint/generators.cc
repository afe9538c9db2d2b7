#include "worker/checkpoint/generators.h"

#include <ATen/CPUGeneratorImpl.h>

namespace ddprun {
namespace {

struct NamedGenerator {
  std::string name;
  at::Generator generator;
};

std::vector<NamedGenerator> Generators(const at::Device& device) {
  std::vector<NamedGenerator> all = {{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (device.is_cuda()) all.push_back({"cuda", at::globalContext().defaultGenerator(device)});
  return all;
}

}  // namespace

void SeedGenerators(uint64_t seed, const at::Device& device) {
  for (NamedGenerator& item : Generators(device)) item.generator.set_current_seed(seed);
}

std::vector<NamedTensor> GeneratorStates(const at::Device& device) {
  std::vector<NamedTensor> states;
  for (const NamedGenerator& item : Generators(device)) {
    states.push_back({item.name, item.generator.get_state()});
  }
  return states;
}

void SetGeneratorStates(const std::vector<NamedTensor>& states, const at::Device& device) {
  for (NamedGenerator& item : Generators(device)) {
    for (const NamedTensor& state : states) {
      if (state.name == item.name) item.generator.set_state(state.tensor);
    }
  }
}

}  // namespace ddprun
