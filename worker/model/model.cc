#include "worker/model/model.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/model/loss.h"
#include "worker/model/registry.h"

namespace ddprun {
namespace {

std::string FullName(const NamedBlock& block, const std::string& name) {
  return block.name.empty() ? name : absl::StrCat(block.name, ".", name);
}

}  // namespace

at::Tensor Model::Forward(at::Tensor input, int first, int last) {
  for (int i = first; i < last; ++i) input = blocks_[static_cast<size_t>(i)].block->forward(input);
  return input;
}

std::vector<NamedTensor> Model::Parameters() const {
  std::vector<NamedTensor> all;
  std::set<const void*> seen;
  for (const NamedBlock& block : blocks_) {
    for (const auto& item : block.block->named_parameters()) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      all.push_back({FullName(block, item.key()), item.value()});
    }
  }
  return all;
}

std::vector<NamedTensor> Model::Buffers() const {
  std::vector<NamedTensor> all;
  for (const NamedBlock& block : blocks_) {
    for (const auto& item : block.block->named_buffers()) {
      all.push_back({FullName(block, item.key()), item.value()});
    }
  }
  return all;
}

void Model::Train(bool on) {
  for (const NamedBlock& block : blocks_) block.block->train(on);
}

void Model::MoveTo(const at::Device& device) {
  for (const NamedBlock& block : blocks_) block.block->to(device);
}

absl::StatusOr<Model> CreateModel(const ModelContext& context) {
  const std::string& name = context.config.model_name;
  for (const RegisteredModel& registered : RegisteredModels()) {
    if (name != registered.name) continue;
    absl::StatusOr<Model> model = registered.entry->make(context);
    if (!model.ok()) return model;
    if (!model->has_loss()) {
      model->set_loss(MakeCrossEntropy(context.config.train_label_smoothing));
    }
    if (context.config.train_best_metric == "accuracy" && !model->loss().classifies()) {
      return absl::InvalidArgumentError(
          "[train] best_metric: is \"accuracy\", but the module's own loss has no scores of "
          "classes; use \"loss\"");
    }
    return model;
  }
  return absl::NotFoundError(
      absl::StrCat("no model \"", name, "\"; this worker has ", absl::StrJoin(ModelNames(), ", ")));
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const RegisteredModel& registered : RegisteredModels()) names.emplace_back(registered.name);
  return names;
}

}  // namespace ddprun
