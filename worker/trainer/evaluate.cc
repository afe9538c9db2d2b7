#include "worker/trainer/evaluate.h"

#include "worker/data/loader.h"

namespace ddprun {
namespace {

// Large enough to be efficient, small enough for the cache of a CPU core.
constexpr int64_t kEvaluationBatch = 250;

}  // namespace

absl::StatusOr<Accuracy> CountCorrect(Model* model, ForwardPass* forward,
                                      const std::shared_ptr<const Dataset>& dataset, int rank,
                                      int world_size, const at::Device& device) {
  const at::NoGradGuard no_grad;
  model->Train(false);
  std::vector<int64_t> indices;
  for (int64_t i = rank; i < dataset->size(); i += world_size) indices.push_back(i);
  Loader loader(dataset, kEvaluationBatch, /*threads=*/0);
  loader.Start(/*epoch=*/0, std::move(indices));
  Accuracy accuracy;
  while (true) {
    absl::StatusOr<Batch> batch = loader.Next();
    if (!batch.ok()) return batch.status();
    if (!batch->inputs.defined()) break;
    const at::Tensor scores = forward->Evaluate(batch->inputs.to(device));
    accuracy.correct += scores.argmax(1).eq(batch->targets.to(device)).sum().item<int64_t>();
    accuracy.total += batch->targets.size(0);
  }
  model->Train(true);
  return accuracy;
}

absl::StatusOr<Accuracy> SumOverRanks(Accuracy mine, Communicator* communicator,
                                      const at::Device& device) {
  if (communicator == nullptr) return mine;
  at::Tensor counts = at::tensor({mine.correct, mine.total}, at::kLong).to(device);
  const WorkPtr work =
      communicator->AllReduce(counts.data_ptr(), 2, DataType::kInt64, ReduceOp::kSum);
  if (absl::Status status = work->WaitHost(); !status.ok()) return status;
  counts = counts.cpu();
  return Accuracy{counts[0].item<int64_t>(), counts[1].item<int64_t>()};
}

}  // namespace ddprun
