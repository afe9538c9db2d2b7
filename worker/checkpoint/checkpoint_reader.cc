#include "worker/checkpoint/checkpoint_reader.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {
namespace {

// A state file is about 2 KiB plus the bucket layout.
constexpr std::streamoff kStateBytesMax = 64 << 20;

absl::Status LoadFile(const std::string& path, const std::vector<NamedTensor>& tensors) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  return LoadTensors(*file, tensors);
}

}  // namespace

absl::StatusOr<TrainState> ReadTrainState(const std::string& dir) {
  const std::string path = dir + "/trainer_state.json";
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream)
    return absl::NotFoundError(absl::StrCat(path, ": cannot open the state of the checkpoint"));
  if (stream.tellg() > kStateBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": larger than ", kStateBytesMax, " bytes"));
  }
  stream.seekg(0);
  std::ostringstream text;
  text << stream.rdbuf();
  absl::StatusOr<TrainState> state = TrainStateFromJson(text.str());
  if (!state.ok())
    return absl::InvalidArgumentError(absl::StrCat(dir, "/", state.status().message()));
  return state;
}

absl::StatusOr<TrainState> ReadTrainState(const std::string& dir, const TrainConfig& config) {
  absl::StatusOr<TrainState> state = ReadTrainState(dir);
  if (!state.ok()) return state;
  if (absl::Status status = CompareForResume(state->config, config); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot continue ", dir, ": ", status.message()));
  }
  return state;
}

absl::Status ReadCheckpointTensors(const std::string& dir, const CheckpointTensors& tensors) {
  if (absl::Status status = LoadFile(dir + "/model.safetensors", tensors.model); !status.ok())
    return status;
  if (!tensors.average.empty()) {
    if (absl::Status status = LoadFile(dir + "/ema.safetensors", tensors.average); !status.ok())
      return status;
  }
  return LoadFile(dir + "/optimizer.safetensors", tensors.optimizer);
}

absl::Status ReadRng(const std::string& dir, int rank, int world_size, const at::Device& device) {
  absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(absl::StrCat(dir, "/", RngFileName(rank, world_size)));
  if (!file.ok()) return file.status();
  std::vector<NamedTensor> states = GeneratorStates(at::kCPU);
  // Of a GPU, if one was used; its size is LibTorch's affair.
  if (const TensorInfo* info = file->Find("cuda"); info != nullptr) {
    states.push_back({"cuda", at::empty(info->shape, at::kByte)});
  }
  if (absl::Status status = LoadTensors(*file, states); !status.ok()) return status;
  SetGeneratorStates(states, device);
  return absl::OkStatus();
}

}  // namespace ddprun
