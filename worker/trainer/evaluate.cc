#include "worker/trainer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/loader.h"

namespace ddprun {
namespace {

// Small samples in batches that are efficient and still fit the cache of a core: 250 images of
// 28 × 28. Large ones (an image of 224 × 224) as in training, which is known to fit into memory.
constexpr int64_t kBatchElements = 250 * 28 * 28;
constexpr int64_t kBatchSamples = 250;

int64_t BatchSize(const SampleSpec& spec, int64_t training_batch) {
  const int64_t elements = std::max<int64_t>(
      1, ElementCount(spec.input_shape) + ElementCount(spec.target_shape) * spec.classes);
  return std::max(training_batch, std::min(kBatchSamples, kBatchElements / elements));
}

int64_t CountTargets(const SampleSpec& spec, const at::Tensor& targets) {
  return spec.ignores ? targets.ne(kIgnoredTarget).sum().item<int64_t>() : targets.numel();
}

}  // namespace

double Evaluation::loss() const {
  return targets == 0 ? std::numeric_limits<double>::quiet_NaN()
                      : loss_sum / static_cast<double>(targets);
}

double Evaluation::accuracy() const {
  return targets == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(targets);
}

absl::StatusOr<Evaluation> EvaluatePart(Model* model, ForwardPass* forward,
                                        const std::shared_ptr<const Dataset>& dataset,
                                        const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const SampleSpec spec = dataset->spec();
  std::vector<int64_t> indices;
  for (int64_t i = options.rank; i < dataset->size(); i += options.world_size) indices.push_back(i);
  Loader loader(dataset, BatchSize(spec, options.batch_size), options.threads);
  loader.Start(/*epoch=*/0, std::move(indices));
  Evaluation part;
  part.classifies = model->loss().classifies();
  // Summed on the device, so that it need not be waited for after each batch.
  at::Tensor correct = at::zeros({}, at::dtype(at::kLong).device(options.device));
  at::Tensor loss_sum = at::zeros({}, at::dtype(at::kDouble).device(options.device));
  model->Train(false);
  absl::Status status;
  while (true) {
    absl::StatusOr<Batch> batch = loader.Next();
    status = batch.status();
    if (!status.ok() || !batch->inputs.defined()) break;
    const int64_t count = CountTargets(spec, batch->targets);
    part.samples += batch->targets.size(0);
    part.targets += count;
    if (count == 0) continue;  // the mean of no targets is no number
    const at::Tensor targets = batch->targets.to(options.device);
    const at::Tensor output = forward->Evaluate(batch->inputs.to(options.device));
    loss_sum += forward->Loss(output, targets).to(at::kDouble) * static_cast<double>(count);
    if (part.classifies) correct += output.argmax(-1).eq(targets).sum();
  }
  model->Train(true);
  if (!status.ok()) return status;
  part.correct = correct.item<int64_t>();
  part.loss_sum = loss_sum.item<double>();
  return part;
}

absl::StatusOr<EvaluationSum> SumOverRanks(const absl::StatusOr<Evaluation>& own,
                                           Communicator* communicator, const at::Device& device) {
  const Evaluation mine = own.ok() ? *own : Evaluation{};
  const int64_t failed = own.ok() ? 0 : 1;
  if (communicator == nullptr) return EvaluationSum{mine, failed};
  // Counts are exact in float64 up to 2^53.
  at::Tensor sums =
      at::tensor({static_cast<double>(mine.samples), static_cast<double>(mine.targets),
                  static_cast<double>(mine.correct), mine.loss_sum, static_cast<double>(failed)},
                 at::kDouble)
          .to(device);
  const WorkPtr work =
      communicator->AllReduce(sums.data_ptr(), sums.numel(), DataType::kFloat64, ReduceOp::kSum);
  if (absl::Status status = work->WaitHost(); !status.ok()) return status;
  sums = sums.cpu();
  const double* values = sums.data_ptr<double>();
  return EvaluationSum{.evaluation = {.samples = static_cast<int64_t>(values[0]),
                                      .targets = static_cast<int64_t>(values[1]),
                                      .correct = static_cast<int64_t>(values[2]),
                                      .loss_sum = values[3],
                                      .classifies = mine.classifies},
                       .failed = static_cast<int64_t>(values[4])};
}

std::string EvaluationSummary(const Evaluation& evaluation) {
  const std::string right = absl::StrFormat("accuracy %.4f (%d of %d)", evaluation.accuracy(),
                                            evaluation.correct, evaluation.targets);
  const std::string loss = absl::StrFormat("loss %.4f", evaluation.loss());
  if (!evaluation.classifies) return absl::StrCat("test ", loss);
  if (evaluation.targets == evaluation.samples) return absl::StrCat("test ", right, ", ", loss);
  return absl::StrFormat("test %s, perplexity %.6g, token %s", loss, std::exp(evaluation.loss()),
                         right);
}

SwappedWeights::SwappedWeights(std::vector<NamedTensor> parameters, std::vector<NamedTensor> others)
    : parameters_(std::move(parameters)), others_(std::move(others)) {
  Swap();
}

SwappedWeights::~SwappedWeights() {
  Swap();
}

// One tensor at a time, so that it needs no second copy of the model.
void SwappedWeights::Swap() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < others_.size(); ++i) {
    const at::Tensor kept = parameters_[i].tensor.clone();
    at::Tensor parameter = parameters_[i].tensor;
    at::Tensor other = others_[i].tensor;
    parameter.copy_(other);
    other.copy_(kept);
  }
}

}  // namespace ddprun
