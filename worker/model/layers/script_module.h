// A module that torch.jit.save wrote in Python, as one block of a model: its own code runs, its
// parameters and buffers keep their names and are trained in place. Shares the training thread.
//
// What is asked of the module: `forward` with one tensor; at least one parameter that is trained.
// Without an exported method `loss(output, targets)` its output is taken as scores of classes.
// Parameters with requires_grad = false count as buffers that never change. Buffers are changed in
// place. One tensor under several names (tied weights, which the file format stores as several) is
// one again, under its first name.
#pragma once

#include <torch/script.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

// Reads the file onto the CPU. INVALID_ARGUMENT names the file, and what in it does not fit.
absl::StatusOr<torch::jit::Module> LoadScriptModule(const std::string& path);

// Writes a file that torch.jit.load reads; whole or not at all.
absl::Status SaveScriptModule(const torch::jit::Module& module, const std::string& path);

class ScriptBlock : public Block {
 public:
  explicit ScriptBlock(torch::jit::Module module);
  // c10::ValueError when the first one in training replaces a buffer.
  at::Tensor forward(const at::Tensor& input) override;
  void train(bool on = true) override;
  void to(torch::Device device, bool non_blocking = false) override;
  // Parameters that are not trained, which are buffers here and never change.
  const std::vector<at::Tensor>& frozen() const { return frozen_; }

  // The name of a buffer in whose place the module has put another tensor, so that it is no longer
  // the one that checkpoints and other ranks know. Empty: none.
  std::string ReplacedBuffer() const;

 private:
  torch::jit::Module module_;
  std::vector<at::Tensor> frozen_;
  bool buffers_checked_ = false;
};

// [model] file: loads the module, and runs it once on two samples of zeros, so that a module that
// does not fit the data is an error here and not in the first step.
absl::StatusOr<Model> MakeScriptModel(const ModelContext& context);

}  // namespace ddprun
