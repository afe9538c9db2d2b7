// Batch norm over {n, channels, rows, columns} with PyTorch's names, defaults (momentum 0.1, eps
// 1e-5) and function. Draws no random numbers.
//
// In training, the statistics are those of the batch; how they are taken can be replaced, which is
// how they come from all ranks at once (SyncBN). An evaluation uses the running ones.
#pragma once

#include <torch/torch.h>

#include <functional>

namespace ddprun {

class BatchNorm2d : public torch::nn::Module {
 public:
  static constexpr double kMomentum = 0.1;
  static constexpr double kEpsilon = 1e-5;
  // Normalises `input` by statistics of its own choice, and moves running_mean and running_var of
  // the module.
  using TrainingFunction = std::function<at::Tensor(BatchNorm2d& norm, const at::Tensor& input)>;

  explicit BatchNorm2d(int64_t channels);
  at::Tensor forward(const at::Tensor& input);
  // Empty: the statistics of this rank's batch.
  void set_training_function(TrainingFunction function) { function_ = std::move(function); }

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }
  at::Tensor& running_mean() { return running_mean_; }
  at::Tensor& running_var() { return running_var_; }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;
  TrainingFunction function_;
};

}  // namespace ddprun
