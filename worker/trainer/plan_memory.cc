#include "worker/trainer/plan_memory.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <unordered_map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "worker/data/loader.h"
#include "worker/trainer/forward.h"
#include "worker/trainer/out_of_memory.h"
#include "worker/trainer/plan_job.h"

namespace ddprun {
namespace {

// Counts what the thread that has it switched on allocates; what was counted is uncounted when it
// is freed, by whatever thread. Lives for ever, as LibTorch wants it of an allocator.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& Get() {
    static auto* allocator = new CountingAllocator;
    return *allocator;
  }

  // Some kernels take memory by its address alone, so an address must be all that Free needs.
  c10::DataPtr allocate(size_t bytes) override {
    void* data = inner_->raw_allocate(bytes);
    if (counting_ && data != nullptr) {
      live_ += static_cast<int64_t>(bytes);
      peak_ = std::max(peak_, live_);
      const std::lock_guard<std::mutex> lock(mutex_);
      sizes_[data] = static_cast<int64_t>(bytes);
    }
    return {data, data, &CountingAllocator::Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::Free; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  void Begin() {
    live_ = peak_ = 0;
    counting_ = true;
  }
  // The most that was held at once since Begin.
  int64_t End() {
    counting_ = false;
    return peak_;
  }

 private:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) {
    constexpr uint8_t kAboveTheDefault = 1;
    c10::SetCPUAllocator(this, kAboveTheDefault);
  }
  static void Free(void* data) {
    CountingAllocator& own = Get();
    int64_t bytes = 0;
    {
      const std::lock_guard<std::mutex> lock(own.mutex_);
      const auto found = own.sizes_.find(data);
      if (found != own.sizes_.end()) {
        bytes = found->second;
        own.sizes_.erase(found);
      }
    }
    own.inner_->raw_deallocate(data);
    // After End it no longer matters.
    if (counting_) live_ -= bytes;
  }

  c10::Allocator* const inner_;
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;  // of what was counted and is not freed
  static thread_local bool counting_;
  static thread_local int64_t live_;
  static thread_local int64_t peak_;
};
thread_local bool CountingAllocator::counting_ = false;
thread_local int64_t CountingAllocator::live_ = 0;
thread_local int64_t CountingAllocator::peak_ = 0;

// Samples of the data's shape; the numbers do not matter for memory, but must be valid.
at::Tensor MadeUpInputs(const SampleSpec& samples, int64_t count) {
  std::vector<int64_t> shape = samples.input_shape;
  shape.insert(shape.begin(), count);
  if (samples.input_type == InputType::kFloat32) return at::randn(shape);
  return at::randint(std::max<int64_t>(1, samples.classes), shape, at::kLong);
}

at::Tensor MadeUpTargets(const SampleSpec& samples, int64_t count) {
  std::vector<int64_t> shape = samples.target_shape;
  shape.insert(shape.begin(), count);
  return at::randint(std::max<int64_t>(1, samples.classes), shape, at::kLong);
}

// `blocks` of the model: of a single one, all would be computed again at once.
std::vector<TrainConfig> Alternatives(const TrainConfig& config, int blocks,
                                      std::vector<std::string>* names) {
  std::vector<TrainConfig> all;
  const auto add = [&](const std::string& name, const TrainConfig& changed) {
    names->push_back(name);
    all.push_back(changed);
  };
  TrainConfig recompute = config;
  recompute.precision_recompute = "blocks";
  TrainConfig amp = config;
  amp.precision_amp = "bf16";
  TrainConfig both = amp;
  both.precision_recompute = "blocks";
  const bool can_recompute = config.precision_recompute == "none" && blocks > 1;
  const bool can_amp = config.precision_amp == "off";
  if (can_recompute) add("[precision] recompute = \"blocks\"", recompute);
  if (can_amp) add("[precision] amp = \"bf16\"", amp);
  if (can_recompute && can_amp) add("[precision] recompute = \"blocks\" and amp = \"bf16\"", both);
  return all;
}

// Half the batch, twice the accumulation: the same update.
MemoryOption HalfTheBatch(const TrainConfig& config, const MemoryAdvice& advice) {
  MemoryOption option;
  option.change = HalfTheBatchText(config);
  option.activations = advice.cost.Of(config.data_batch_size / 2);
  option.on_device = advice.plan.OnDevice() - advice.plan.activations + option.activations;
  return option;
}

}  // namespace

std::string HalfTheBatchText(const TrainConfig& config) {
  return absl::StrCat("[data] batch_size = ", config.data_batch_size / 2,
                      " with [train] accumulation_steps = ", 2 * config.train_accumulation_steps);
}

int64_t MeasurePeak(Model* model, const TrainConfig& config, const SampleSpec& samples,
                    int64_t count) {
  // CPU kernels know no fp16 autocast for every operation; the sizes are the same.
  TrainConfig own = config;
  if (own.precision_amp == "fp16") own.precision_amp = "bf16";
  ForwardPass pass(model, own, at::kCPU);
  CountingAllocator& allocator = CountingAllocator::Get();
  const at::Tensor targets = MadeUpTargets(samples, count);
  allocator.Begin();
  absl::Cleanup end = [&] { allocator.End(); };
  // Counted: a batch lies on the device while it is used.
  at::Tensor output = pass.Forward(MadeUpInputs(samples, count), 0, model->size());
  at::Tensor loss = model->loss().Compute(output, targets);
  output = at::Tensor();
  loss.backward();
  return allocator.End();
}

namespace {

// Never one sample: LibTorch's CPU convolutions then take other kernels, with much room of their
// own, and batch norm over single pixels does not work.
constexpr int64_t kFewSamples = 4;

absl::StatusOr<ActivationCost> Measure(Model* model, const TrainConfig& config,
                                       const SampleSpec& samples) {
  try {
    const int64_t fewer = MeasurePeak(model, config, samples, kFewSamples);
    const int64_t more = MeasurePeak(model, config, samples, 2 * kFewSamples);
    const int64_t per_sample = std::max<int64_t>(0, (more - fewer) / kFewSamples);
    return ActivationCost{std::max<int64_t>(0, fewer - kFewSamples * per_sample), per_sample};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return absl::InternalError(
        absl::StrCat("the model cannot be computed on the CPU: ", text.substr(0, text.find('\n'))));
  }
}

}  // namespace

absl::StatusOr<ActivationCost> MeasureActivations(Model* model, const TrainConfig& config,
                                                  const SampleSpec& samples) {
  model->Train(true);
  for (const NamedTensor& item : model->Parameters()) {
    at::Tensor parameter = item.tensor;
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
  absl::Cleanup forget = [model] {
    for (const NamedTensor& item : model->Parameters()) {
      at::Tensor parameter = item.tensor;
      parameter.mutable_grad() = at::Tensor();
    }
  };
  return Measure(model, config, samples);
}

namespace {

// What needs no more than the job as it is.
MemoryAdvice AdviceOf(const ActivationCost& cost, const Model& model, const ParameterUpdate& update,
                      const TrainConfig& config, const SampleSpec& samples) {
  MemoryAdvice advice;
  advice.cost = cost;
  MemoryPlan& plan = advice.plan;
  plan.weights = plan.gradients = TensorBytes(model.Parameters());
  plan.buffers = TensorBytes(model.Buffers());
  plan.optimizer = TensorBytes(update.State());
  plan.average = TensorBytes(update.AveragedWeights());
  plan.activations = cost.Of(config.data_batch_size);
  plan.loader = Loader::RingBytes(samples, {.batch_size = config.data_batch_size,
                                            .threads = static_cast<int>(config.data_workers)});
  plan.checkpoint_copy = plan.weights + plan.buffers + plan.optimizer + plan.average;
  return advice;
}

// An option that helps takes its place among the others.
void AddOption(const MemoryOption& option, MemoryAdvice* advice) {
  if (option.activations >= advice->plan.activations) return;
  const auto place = std::upper_bound(
      advice->options.begin(), advice->options.end(), option,
      [](const MemoryOption& a, const MemoryOption& b) { return a.activations < b.activations; });
  advice->options.insert(place, option);
}

}  // namespace

absl::StatusOr<MemoryAdvice> PlanMemory(Model* model, const ParameterUpdate& update,
                                        const TrainConfig& config, const SampleSpec& samples,
                                        double seconds_max,
                                        const std::function<void(MemoryAdvice)>& progress) {
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<ActivationCost> cost = MeasureActivations(model, config, samples);
  if (!cost.ok()) return cost.status();
  MemoryAdvice advice = AdviceOf(*cost, *model, update, config, samples);
  if (config.data_batch_size > 1) AddOption(HalfTheBatch(config, advice), &advice);
  const std::vector<TrainConfig> alternatives =
      Alternatives(config, model->size(), &advice.unmeasured);
  for (const TrainConfig& alternative : alternatives) {
    if (progress) progress(advice);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (taken.count() > seconds_max) break;
    absl::StatusOr<ActivationCost> changed = MeasureActivations(model, alternative, samples);
    const std::string name = advice.unmeasured.front();
    advice.unmeasured.erase(advice.unmeasured.begin());
    if (!changed.ok()) continue;  // autocast, for example, does not know every operation
    const int64_t activations = changed->Of(config.data_batch_size);
    AddOption({name, activations, advice.plan.OnDevice() - advice.plan.activations + activations},
              &advice);
  }
  return advice;
}

}  // namespace ddprun
