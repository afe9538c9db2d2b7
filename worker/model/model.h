// A model: an ordered list of named blocks, each taking and giving one tensor. Cutting the list
// anywhere gives pipeline stages; parameter names are `<block>.<name in the block>`, which are
// PyTorch's names for the same network. One thread trains a model. Models are made by name through
// the registry, one file a model.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

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

class Model {
 public:
  explicit Model(std::vector<NamedBlock> blocks) : blocks_(std::move(blocks)) {}

  int size() const { return static_cast<int>(blocks_.size()); }
  // Runs blocks first … last−1.
  at::Tensor Forward(at::Tensor input, int first, int last);
  // In block order, then in the order of registration: the same on every rank, and that of
  // `parameters()` in PyTorch.
  std::vector<NamedTensor> Parameters() const;
  std::vector<NamedTensor> Buffers() const;
  void Train(bool on);
  void MoveTo(const at::Device& device);

 private:
  std::vector<NamedBlock> blocks_;
};

// Makes the model with PyTorch's default initialisation from LibTorch's CPU generator (seed it
// before). NOT_FOUND for an unknown name; lists the known ones.
absl::StatusOr<Model> CreateModel(const std::string& name);
std::vector<std::string> ModelNames();

// The registry's entries.
Model MakeSimpleCnn();

}  // namespace ddprun
