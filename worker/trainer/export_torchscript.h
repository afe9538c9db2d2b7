// Trained weights of a torchscript model back into a file that Python's torch.jit.load opens.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ddprun {

// Takes the module of the run ([model] file of the checkpoint's own configuration, or `module_file`
// where that has moved; empty: it has not), puts the weights and buffers of the checkpoint folder
// into it and writes `output`, whole or not at all. The module's training flag stays as the file
// has it. INVALID_ARGUMENT when the checkpoint is of another kind of model.
absl::Status ExportTorchScript(const std::string& checkpoint_dir, const std::string& output,
                               const std::string& module_file);

}  // namespace ddprun
