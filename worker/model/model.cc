#include "worker/model/model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun {
namespace {

struct Entry {
  const char* name;
  Model (*make)();
};
constexpr Entry kModels[] = {{"simple_cnn", &MakeSimpleCnn}};

}  // namespace

at::Tensor Model::Forward(at::Tensor input, int first, int last) {
  for (int i = first; i < last; ++i) input = blocks_[static_cast<size_t>(i)].block->forward(input);
  return input;
}

std::vector<NamedTensor> Model::Parameters() const {
  std::vector<NamedTensor> all;
  for (const NamedBlock& block : blocks_) {
    for (const auto& item : block.block->named_parameters()) {
      all.push_back({absl::StrCat(block.name, ".", item.key()), item.value()});
    }
  }
  return all;
}

std::vector<NamedTensor> Model::Buffers() const {
  std::vector<NamedTensor> all;
  for (const NamedBlock& block : blocks_) {
    for (const auto& item : block.block->named_buffers()) {
      all.push_back({absl::StrCat(block.name, ".", item.key()), item.value()});
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

absl::StatusOr<Model> CreateModel(const std::string& name) {
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry.make();
  }
  return absl::NotFoundError(
      absl::StrCat("no model \"", name, "\"; this worker has ", absl::StrJoin(ModelNames(), ", ")));
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.push_back(entry.name);
  return names;
}

}  // namespace ddprun
