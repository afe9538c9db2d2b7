#include "worker/trainer/export_torchscript.h"

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/tensor_format.h"
#include "worker/model/layers/script_module.h"

namespace ddprun {

absl::Status ExportTorchScript(const std::string& checkpoint_dir, const std::string& output,
                               const std::string& module_file) {
  absl::StatusOr<TrainState> state = ReadTrainState(checkpoint_dir);
  if (!state.ok()) return state.status();
  if (state->config.model_name != "torchscript") {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_dir, " is of model ", state->config.model_name,
        ", which has no module of its own to put the weights into; other programs take its "
        "weights as safetensors: ddprun ckpt export without --format"));
  }
  absl::StatusOr<torch::jit::Module> module =
      LoadScriptModule(module_file.empty() ? state->config.model_file : module_file);
  if (!module.ok()) return module.status();
  const Model model({{"", std::make_shared<ScriptBlock>(*module)}});
  std::vector<NamedTensor> tensors = model.Parameters();
  for (const NamedTensor& buffer : model.Buffers()) tensors.push_back(buffer);
  absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(checkpoint_dir + "/model.safetensors");
  if (!file.ok()) return file.status();
  if (absl::Status status = LoadTensors(*file, tensors); !status.ok()) return status;
  return SaveScriptModule(*module, output);
}

}  // namespace ddprun
