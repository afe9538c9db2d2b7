// A model: an ordered list of named blocks, each taking and giving one tensor. Cutting the list
// anywhere gives pipeline stages; parameter names are `<block>.<name in the block>`, which are
// PyTorch's names for the same network (a block with an empty name adds nothing). One thread trains
// a model.
//
// The registry has one file a model: worker/model/models/<name>.cc defines `model_<name>`, and that
// is all (docs/adding_a_model.md).
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/data/dataset.h"

namespace ddprun {

class Block : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

struct NamedBlock {
  std::string name;
  std::shared_ptr<Block> block;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The mean over the valid targets of a micro-batch, float32. `output`: what the last block gave;
// `targets`: int64, kIgnoredTarget where none.
class Loss {
 public:
  virtual ~Loss() = default;
  virtual at::Tensor Compute(const at::Tensor& output, const at::Tensor& targets) = 0;
  // Whether the largest score along the class dimension is the prediction, so that there is an
  // accuracy.
  virtual bool classifies() const { return true; }
};

// One more name that PyTorch's module has for a parameter, which files from Python may hold too.
struct TiedName {
  std::string name;       // "lm_head.weight"
  std::string parameter;  // "wte.weight"
};

class Model {
 public:
  // Without a loss: cross-entropy over dimension 1 of {n, classes}, or the last of {n, length,
  // classes}, with the configuration's label smoothing.
  explicit Model(std::vector<NamedBlock> blocks, std::shared_ptr<Loss> loss = nullptr)
      : blocks_(std::move(blocks)), loss_(std::move(loss)) {}

  int size() const { return static_cast<int>(blocks_.size()); }
  const std::vector<NamedBlock>& blocks() const { return blocks_; }
  // Runs blocks first … last−1.
  at::Tensor Forward(at::Tensor input, int first, int last);
  Loss& loss() { return *loss_; }
  bool has_loss() const { return loss_ != nullptr; }
  void set_loss(std::shared_ptr<Loss> loss) { loss_ = std::move(loss); }
  // In block order, then in the order of registration: the same on every rank, and that of
  // `parameters()` in PyTorch. A tensor that two blocks share is listed once, under its first name.
  std::vector<NamedTensor> Parameters() const;
  std::vector<NamedTensor> Buffers() const;
  const std::vector<TiedName>& tied_names() const { return tied_names_; }
  void set_tied_names(std::vector<TiedName> names) { tied_names_ = std::move(names); }
  void Train(bool on);
  void MoveTo(const at::Device& device);

 private:
  std::vector<NamedBlock> blocks_;
  std::shared_ptr<Loss> loss_;
  std::vector<TiedName> tied_names_;
};

// What a model is made from: its sizes, and what goes in.
struct ModelContext {
  const TrainConfig& config;
  SampleSpec data;
};

struct ModelEntry {
  // INVALID_ARGUMENT when the data or the sizes do not fit the model; names the key.
  absl::StatusOr<Model> (*make)(const ModelContext& context);
};

// Makes the model with PyTorch's default initialisation from LibTorch's CPU generator (seed it
// before), then its loss. NOT_FOUND for an unknown name; lists the known ones.
absl::StatusOr<Model> CreateModel(const ModelContext& context);
std::vector<std::string> ModelNames();

}  // namespace ddprun
