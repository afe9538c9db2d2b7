// Checkpoints and safetensors files for the tests of `ddprun ckpt`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/cli_folder.h"

namespace ddprun::cli {

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

std::string FloatBytes(const std::vector<float>& values);
// A safetensors file's bytes.
std::string TensorFile(const std::vector<TestTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// conv.weight [2, 2] and bn.num_batches_tracked, told from those of other steps by their values.
std::string ModelFile(float first);

// runs/job/checkpoints/step-<step> with a manifest, model.safetensors and `more` (name → bytes);
// runs/latest points to the job.
void WriteCheckpoint(Folder& folder, uint64_t step,
                     const std::map<std::string, std::string>& more = {});

// The numbers of a F32 tensor of a file.
std::vector<float> FloatsOf(const std::string& path, const std::string& name);

}  // namespace ddprun::cli
