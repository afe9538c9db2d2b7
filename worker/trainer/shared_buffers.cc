#include "worker/trainer/shared_buffers.h"

#include <set>

#include "worker/trainer/sync_batch_norm.h"

namespace ddprun {

SharedBuffers::SharedBuffers(const Model& model, Communicator* communicator)
    : communicator_(communicator) {
  std::set<const void*> statistics;
  for (BatchNorm2d* layer : BatchNormLayers(model)) {
    for (const at::Tensor& buffer : layer->buffers()) {
      statistics.insert(buffer.unsafeGetTensorImpl());
    }
  }
  for (const NamedTensor& buffer : model.Buffers()) {
    all_.emplace_back(buffer.name, buffer.tensor);
    if (statistics.count(buffer.tensor.unsafeGetTensorImpl()) == 0) others_.push_back(all_.back());
  }
}

}  // namespace ddprun
