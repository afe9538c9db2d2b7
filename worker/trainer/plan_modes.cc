#include "worker/trainer/plan_modes.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/trainer/out_of_memory.h"
#include "worker/trainer/plan_job.h"
#include "worker/trainer/plan_memory.h"
#include "worker/trainer/schedule.h"
#include "worker/trainer/session.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitWrong = 2;
constexpr int kRanksMax = 1 << 20;
constexpr double kPlanSeconds = 300;  // then no further option is measured

Json MemoryJson(const MemoryPlan& plan) {
  return {{"weights", plan.weights},     {"buffers", plan.buffers},
          {"gradients", plan.gradients}, {"optimizer", plan.optimizer},
          {"average", plan.average},     {"activations", plan.activations},
          {"loader", plan.loader},       {"checkpoint_copy", plan.checkpoint_copy},
          {"on_device", plan.OnDevice()}};
}

// A ring all-reduce of b bytes over n ranks sends 2 (n − 1) / n · b from each of them.
Json CommunicationJson(const TrainConfig& config, const MemoryPlan& plan, int world_size) {
  const int64_t reduced = config.parallel_compress == "bf16" ? plan.gradients / 2 : plan.gradients;
  const int64_t ranks = world_size;
  return {{"reduced_bytes", ranks > 1 ? reduced : 0},
          {"sent_bytes_per_rank", 2 * (ranks - 1) * reduced / ranks}};
}

Json LearningRateJson(const LearningRateSchedule& schedule, const RunLength& length) {
  return {{"start", schedule.At(0)},
          {"warmup_steps", schedule.warmup_steps()},
          {"peak", schedule.peak()},
          {"end", schedule.At(std::max<int64_t>(0, length.total_steps - 1))}};
}

int64_t Elements(const std::vector<NamedTensor>& tensors) {
  int64_t elements = 0;
  for (const NamedTensor& item : tensors) elements += item.tensor.numel();
  return elements;
}

// What the figures stand on, for whoever reads them.
std::vector<std::string> Assumptions(const TrainConfig& config, int world_size) {
  std::vector<std::string> all = {
      "activations are measured on the CPU with four samples and with eight, at the peak of "
      "forward "
      "and backward, and carried on to the batch; a GPU's kernels may keep less (attention) or "
      "need "
      "room of their own (cuDNN)",
      "not counted: LibTorch's libraries and, on a GPU, its context (some 0.5 GB); the data set, "
      "where it is kept in memory or mapped; what an allocator keeps of memory that is free again"};
  if (config.precision_amp == "fp16") all.emplace_back("fp16 is measured as bf16: equal in size");
  if (config.train_early_stop > 0)
    all.emplace_back("early_stop may end the run before its last step");
  if (world_size > 1) {
    all.emplace_back(
        "communication: gradients in a ring, as over a network or between GPUs; ranks on the CPUs "
        "of "
        "one machine add them up in memory that they share and send nothing; not counted are the "
        "small messages of SyncBN, of evaluations and checks");
  }
  return all;
}

absl::Status Answer(const std::string& mode, const std::string& world_size) {
  int ranks = 0;
  if (!absl::SimpleAtoi(world_size, &ranks) || ranks < 1 || ranks > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(mode, " ", world_size, ": give the number of ranks"));
  }
  absl::StatusOr<TrainConfig> config = ReadWorkerConfig(nullptr);
  if (!config.ok()) return config.status();
  if (mode != "--plan") return CheckJob(*config, ranks, mode == "--check-resumed");
  absl::StatusOr<std::string> plan = PlanJson(*config, ranks);
  if (!plan.ok()) return plan.status();
  std::puts(plan->c_str());
  return absl::OkStatus();
}

// LibTorch reports by exceptions; this is where they become a status.
absl::Status AnswerCatchingAll(const std::string& mode, const std::string& world_size) {
  try {
    return Answer(mode, world_size);
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const c10::Error*>(&error);
    const std::string text = ours != nullptr ? ours->what_without_backtrace() : error.what();
    if (!IsOutOfMemory(error)) return absl::InternalError(text);
    return absl::ResourceExhaustedError(absl::StrCat(
        "there is not enough memory here to make the model and try two samples (", text,
        "); make the model or its samples smaller ([model] and [data] in the "
        "configuration), or start where there is more memory"));
  }
}

}  // namespace

absl::Status CheckJob(const TrainConfig& config, int world_size, bool resumed) {
  absl::StatusOr<PlannedJob> job = PlanJob(config, world_size, resumed);
  return job.ok() ? TryModel(&*job) : job.status();
}

absl::StatusOr<std::string> PlanJson(const TrainConfig& config, int world_size) {
  absl::StatusOr<PlannedJob> job = PlanJob(config, world_size);
  if (!job.ok()) return job.status();
  const SampleSpec samples = job->train_data->spec();
  absl::StatusOr<MemoryAdvice> memory =
      PlanMemory(&*job->model, *job->update, config, samples, kPlanSeconds);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<LearningRateSchedule> schedule = LearningRateSchedule::Create(config, job->length);
  if (!schedule.ok()) return schedule.status();
  Json options = Json::array();
  for (const MemoryOption& option : memory->options) {
    options.push_back({{"change", option.change},
                       {"activations", option.activations},
                       {"on_device", option.on_device}});
  }
  const Json plan = {
      {"model", config.model_name},
      {"parameters", Elements(job->model->Parameters())},
      {"buffers", Elements(job->model->Buffers())},
      {"world_size", world_size},
      {"samples", job->train_data->size()},
      {"batch_size", config.data_batch_size},
      {"accumulation_steps", config.train_accumulation_steps},
      {"samples_per_step", config.data_batch_size * config.train_accumulation_steps * world_size},
      {"steps_per_epoch", job->length.steps_per_epoch},
      {"steps", job->length.total_steps},
      {"memory", MemoryJson(memory->plan)},
      {"activations_per_sample", memory->cost.per_sample},
      {"learning_rate", LearningRateJson(*schedule, job->length)},
      {"communication", CommunicationJson(config, memory->plan, world_size)},
      {"options", std::move(options)},
      {"assumptions", Assumptions(config, world_size)}};
  return plan.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int RunPlanMode(const std::string& mode, const std::string& world_size) {
  const absl::Status status = AnswerCatchingAll(mode, world_size);
  if (status.ok()) return 0;
  // One line: whoever asked shows it as it is.
  std::string text(status.message());
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  fprintf(stderr, "ddp-worker: %s\n", text.c_str());
  return kExitWrong;
}

}  // namespace ddprun
