// What one worker process has before training: its place in the job, the resolved configuration, a
// device, and (with several ranks) a communicator. Also the translation between libddprun's C calls
// and ours. Made once by main; belongs to the training thread.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/client/ddprun.h"
#include "worker/comm/communicator.h"
#include "worker/data/dataset.h"
#include "worker/trainer/out_of_memory.h"

namespace ddprun {

struct Session {
  ddprun_handle* client = nullptr;
  int rank = 0;
  int world_size = 1;
  TrainConfig config;
  at::Device device = at::kCPU;
  Exchange exchange;
  std::unique_ptr<Communicator> communicator;  // null with one rank
  // For messages, once they are known.
  StateBytes state_bytes;                     // what every step keeps
  std::shared_ptr<const Dataset> train_data;  // for a dry run
};

// The configuration from DDPRUN_TRAIN_CONFIG (JSON, from the launcher), else from the file `path`
// (null: none).
absl::StatusOr<TrainConfig> ReadWorkerConfig(const char* path);

// The device that the launcher chose: DDPRUN_DEVICE is `cpu` (default) or `cuda` (then LOCAL_RANK
// is the index).
absl::StatusOr<at::Device> ChooseDevice(int local_rank);

// publish and await through the launcher.
Exchange MakeExchange(ddprun_handle* client);

// Gloo or NCCL among all ranks. Its collectives show in the step page. `name`: unique in the job.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const Session& session,
                                                           const std::string& name);

// Where the decompressed data lies between restarts; empty without a launcher.
std::string DataCacheDir(const Session& session);

// How the end of a worker is reported: a peer's fault, a fault that a restart cannot help, or
// anything else.
int FailureKind(const absl::Status& status);

}  // namespace ddprun
