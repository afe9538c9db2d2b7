#include "worker/trainer/shared_buffers.h"

#include <set>

#include "worker/model/layers/script_module.h"
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
  std::set<const void*> constant;
  for (const NamedBlock& named : model.blocks()) {
    const auto* script = dynamic_cast<const ScriptBlock*>(named.block.get());
    if (script == nullptr) continue;
    for (const at::Tensor& weight : script->frozen()) {
      constant.insert(weight.unsafeGetTensorImpl());
    }
  }
  for (const NamedTensor& buffer : model.Buffers()) {
    if (constant.count(buffer.tensor.unsafeGetTensorImpl()) != 0) continue;
    all_.emplace_back(buffer.name, buffer.tensor);
    if (statistics.count(buffer.tensor.unsafeGetTensorImpl()) == 0) others_.push_back(all_.back());
  }
}

}  // namespace ddprun
