// Safetensors files as they are written by `ddprun ckpt`: each whole or not at all (staged_file.h).
// One thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/ckpt_weights.h"

namespace ddprun::cli {

struct OutputTensor {
  std::string name;
  std::string dtype;  // to which the weight is converted
  const Weight* weight = nullptr;
};

// Where the tensors go.
struct OutputFiles {
  std::string path;  // FILE.safetensors
  uint32_t shards = 1;
  bool replace = false;
  std::map<std::string, std::string> metadata;
};

// Writes the tensors to one file, or to shards beside each other and their index. Returns the paths
// written, the index last. ALREADY_EXISTS names a file that is there already: nothing is written.
// OUT_OF_RANGE names the tensor that does not fit its type.
absl::StatusOr<std::vector<std::string>> WriteTensors(const std::vector<OutputTensor>& tensors,
                                                      const OutputFiles& files);

}  // namespace ddprun::cli
