#include "worker/trainer/sync_batch_norm.h"

#include <bit>
#include <chrono>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kSmallBatch = 32;  // per rank, where `auto` synchronises
// The count that an empty batch is given on a GPU: its kernels divide by sums of counts, and the
// host does not know which ranks are empty.
constexpr double kEmptyCount = 1e-30;

// Of all ranks together, by channel, float32.
struct Statistics {
  at::Tensor mean;
  at::Tensor inverse_deviation;
  at::Tensor counts;  // by rank
};

at::Tensor ByChannel(const at::Tensor& values) {
  return values.view({1, -1, 1, 1});
}

int64_t ValuesPerChannel(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

// A GPU has a kernel for each step.
Statistics GatherOnGpu(SyncBatchNorm& sync, BatchNorm2d& layer, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const int64_t count = ValuesPerChannel(input);
  at::Tensor mean = at::zeros({channels}, input.options().dtype(at::kFloat));
  at::Tensor inverse = at::ones_like(mean);
  if (count > 0) std::tie(mean, inverse) = at::batch_norm_stats(input, BatchNorm2d::kEpsilon);
  const double weight = count > 0 ? static_cast<double>(count) : kEmptyCount;
  const at::Tensor all =
      sync.AllGather(at::cat({mean, inverse, at::full({1}, weight, mean.options())}));
  const at::Tensor counts = all.select(1, 2 * channels).contiguous();
  Statistics result;
  result.counts = counts;
  std::tie(result.mean, result.inverse_deviation) = at::batch_norm_gather_stats_with_counts(
      input, all.narrow(1, 0, channels), all.narrow(1, channels, channels), layer.running_mean(),
      layer.running_var(), BatchNorm2d::kMomentum, BatchNorm2d::kEpsilon, counts);
  return result;
}

// Chan, Golub and LeVeque: the variance of parts is the mean of their variances and of the squares
// of their means' distances, both weighted. In float64, since C numbers cost nothing.
Statistics GatherOnCpu(SyncBatchNorm& sync, BatchNorm2d& layer, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const int64_t count = ValuesPerChannel(input);
  at::Tensor mean = at::zeros({channels}, at::kFloat);
  at::Tensor variance = at::zeros({channels}, at::kFloat);
  if (count > 0) {
    // Float32 statistics to update make the kernel compute in float32 on 16-bit input, too.
    std::tie(mean, variance) = at::batch_norm_update_stats(input, mean, variance, /*momentum=*/0);
  }
  const at::Tensor mine = at::cat({mean, variance, at::full({1}, count, mean.options())});
  const at::Tensor all = sync.AllGather(mine).to(at::kDouble);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);  // {ranks, 1}
  const double total = counts.sum().item<double>();
  TORCH_CHECK_VALUE(
      total > 1 || !sync.status().ok(),
      "batch norm has one value a channel on all ranks together, and so no deviation; use "
      "a larger [data] batch_size");
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor all_mean = (means * counts).sum(0) / total;
  const at::Tensor all_variance =
      ((all.narrow(1, channels, channels) + (means - all_mean).square()) * counts).sum(0) / total;
  constexpr double kMomentum = BatchNorm2d::kMomentum;
  layer.running_mean().mul_(1 - kMomentum).add_(all_mean, kMomentum);
  layer.running_var().mul_(1 - kMomentum).add_(all_variance, kMomentum * total / (total - 1));
  return {.mean = all_mean.to(at::kFloat),
          .inverse_deviation = (all_variance + BatchNorm2d::kEpsilon).rsqrt().to(at::kFloat),
          .counts = counts.reshape({-1}).to(at::kFloat)};
}

// (input − mean) × scale + shift by channel, in one pass: what an evaluation of batch norm does.
at::Tensor Affine(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& scale,
                  const at::Tensor& shift) {
  if (input.numel() == 0) return at::empty_like(input);
  return std::get<0>(at::native_batch_norm(input, scale, shift, mean, at::ones_like(mean),
                                           /*training=*/false, 0, 0));
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, SyncBatchNorm* sync, BatchNorm2d* layer,
                            const at::Tensor& any_input, const at::Tensor& weight,
                            const at::Tensor& bias) {
    const bool gpu = any_input.is_cuda();
    // The kernels take dense values in one of the two orders.
    const at::Tensor input = any_input.contiguous(any_input.suggest_memory_format());
    const Statistics all =
        gpu ? GatherOnGpu(*sync, *layer, input) : GatherOnCpu(*sync, *layer, input);
    context->save_for_backward({input, weight, all.mean, all.inverse_deviation, all.counts});
    context->saved_data["sync"] = std::bit_cast<int64_t>(sync);
    if (gpu && input.numel() > 0) {
      return at::batch_norm_elemt(input, weight, bias, all.mean, all.inverse_deviation,
                                  BatchNorm2d::kEpsilon);
    }
    return Affine(input, all.mean, weight * all.inverse_deviation, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_grads) {
    const variable_list saved = context->get_saved_variables();
    auto* sync = std::bit_cast<SyncBatchNorm*>(context->saved_data["sync"].toInt());
    const at::Tensor& input = saved[0];
    const at::Tensor grad = output_grads[0].contiguous(input.suggest_memory_format());
    variable_list result(5);
    if (input.is_cuda()) {
      OnGpu(*sync, grad, saved, context->needs_input_grad(2), &result);
    } else {
      OnCpu(*sync, grad, saved, context->needs_input_grad(2), &result);
    }
    return result;
  }

 private:
  // result: of sync, layer, input, weight, bias.
  static void OnGpu(SyncBatchNorm& sync, const at::Tensor& grad, const variable_list& saved,
                    bool needs_input, variable_list* result) {
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const int64_t channels = input.size(1);
    at::Tensor sum = at::zeros({channels}, mean.options());
    at::Tensor product = at::zeros_like(sum);
    at::Tensor weight_grad = at::zeros_like(weight);
    at::Tensor bias_grad = at::zeros_like(weight);
    if (input.numel() > 0) {
      std::tie(sum, product, weight_grad, bias_grad) =
          at::batch_norm_backward_reduce(grad, input, mean, inverse, weight, true, true, true);
    }
    at::Tensor sums = at::cat({sum, product});
    sync.AllReduce(sums);
    (*result)[3] = weight_grad;
    (*result)[4] = bias_grad;
    if (!needs_input) return;
    (*result)[2] = input.numel() == 0
                       ? at::empty_like(input)
                       : at::batch_norm_backward_elemt(
                             grad, input, mean, inverse, weight, sums.narrow(0, 0, channels),
                             sums.narrow(0, channels, channels), saved[4].to(at::kInt));
  }

  static void OnCpu(SyncBatchNorm& sync, const at::Tensor& grad, const variable_list& saved,
                    bool needs_input, variable_list* result) {
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const int64_t channels = input.size(1);
    // Σ dy·x̂ and Σ dy are the gradients of weight and bias.
    at::Tensor weight_grad = at::zeros_like(weight);
    at::Tensor bias_grad = at::zeros_like(weight);
    if (input.numel() > 0) {
      std::tie(std::ignore, weight_grad, bias_grad) = at::native_batch_norm_backward(
          grad, input, weight, mean, mean, mean, inverse, /*train=*/true, BatchNorm2d::kEpsilon,
          {false, true, true});
    }
    at::Tensor sums = at::cat({bias_grad, weight_grad});
    sync.AllReduce(sums);
    (*result)[3] = weight_grad;
    (*result)[4] = bias_grad;
    if (!needs_input) return;
    // dx = w·s·(dy − Σdy/N − x̂·Σ(dy·x̂)/N) with s the inverse deviation and x̂ = (x − mean)·s.
    const at::Tensor total = saved[4].sum();
    const at::Tensor scale = weight * inverse;
    const at::Tensor of_input = -scale * inverse * sums.narrow(0, channels, channels) / total;
    const at::Tensor constant = -scale * sums.narrow(0, 0, channels) / total;
    // Sums of large parts that cancel are not for 16 bits.
    const at::Tensor input_grad = Affine(input.to(at::kFloat), mean, of_input, constant)
                                      .addcmul_(grad.to(at::kFloat), ByChannel(scale));
    (*result)[2] = input_grad.to(input.scalar_type());
  }
};

}  // namespace

std::vector<BatchNorm2d*> BatchNormLayers(const Model& model) {
  std::vector<BatchNorm2d*> layers;
  for (const NamedBlock& block : model.blocks()) {
    for (const auto& module : block.block->modules()) {
      if (auto* layer = module->as<BatchNorm2d>(); layer != nullptr) layers.push_back(layer);
    }
  }
  return layers;
}

absl::StatusOr<bool> UseSyncBatchNorm(const TrainConfig& config, const Model& model,
                                      int world_size) {
  if (config.parallel_sync_bn == "off") return false;
  const bool has_layers = !BatchNormLayers(model).empty();
  if (config.parallel_sync_bn == "on" && !has_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[parallel] sync_bn: the model ", config.model_name,
        " has no batch norm that could be synchronised; set it to \"auto\" or \"off\""));
  }
  if (world_size == 1 || !has_layers) return false;
  return config.parallel_sync_bn == "on" || config.data_batch_size <= kSmallBatch;
}

SyncBatchNorm::SyncBatchNorm(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void SyncBatchNorm::Attach(const std::vector<BatchNorm2d*>& layers) {
  for (BatchNorm2d* layer : layers) {
    layer->set_training_function(
        [this](BatchNorm2d& norm, const at::Tensor& input) { return Run(norm, input); });
  }
}

at::Tensor SyncBatchNorm::Run(BatchNorm2d& layer, const at::Tensor& input) {
  return SyncBatchNormFunction::apply(this, &layer, input, layer.weight(), layer.bias());
}

void SyncBatchNorm::Await(const at::Tensor& values, const std::function<WorkPtr()>& begin) {
  const auto before = std::chrono::steady_clock::now();
  const absl::Status status = begin()->Wait();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - before;
  if (values.is_cpu()) wait_seconds_ += taken.count();
  if (status_.ok()) status_ = status;
}

void SyncBatchNorm::AllReduce(at::Tensor& values) {
  Await(values, [&] {
    return communicator_->AllReduce(values.data_ptr(), static_cast<size_t>(values.numel()),
                                    DataType::kFloat32, ReduceOp::kSum);
  });
}

at::Tensor SyncBatchNorm::AllGather(const at::Tensor& values) {
  at::Tensor all = at::empty({communicator_->size(), values.numel()}, values.options());
  Await(values, [&] {
    return communicator_->AllGather(values.data_ptr(), all.data_ptr(),
                                    static_cast<size_t>(values.numel()), DataType::kFloat32);
  });
  return all;
}

}  // namespace ddprun
