// What ranks do about buffers (tensors of the model that are no parameters), which each rank
// changes by its own batch. As with PyTorch's DDP, rank 0's count.
//
// Running statistics of batch norm have no effect on training, so they are left alone until someone
// looks at all ranks' (an evaluation, a comparison); the checkpoint holds rank 0's anyway. Others
// (of a TorchScript module) may have one, and come from rank 0 before each update. Both happen
// between backward and the next forward, when no graph holds a buffer (TR6). Belongs to the
// training thread.
#pragma once

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/model/model.h"
#include "worker/trainer/reducer_tensors.h"

namespace ddprun {

class SharedBuffers {
 public:
  // communicator: null for one rank; outlives this.
  SharedBuffers(const Model& model, Communicator* communicator);
  absl::Status BeforeUpdate() { return BroadcastTensors(others_, communicator_); }
  // Afterwards all buffers of all ranks are equal (those that never change always were, see
  // Trainer::Connect).
  absl::Status BeforeUse() { return BroadcastTensors(all_, communicator_); }

 private:
  Communicator* const communicator_;
  NamedTensors all_;
  NamedTensors others_;  // those that are no running statistics of ours
};

}  // namespace ddprun
