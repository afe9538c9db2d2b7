#include "worker/trainer/reducer.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr size_t kNamesInMessageMax = 10;
// Of the control slots.
constexpr int kFlagSlot = 0;
constexpr int kLossSlot = 1;
static_assert(kLossSlot < kControlSlots);

// The view of a gradient has the strides of its parameter where they leave no holes, so that
// accumulation is one pass.
torch::Tensor GradientView(const torch::Tensor& flat, const torch::Tensor& parameter,
                           int64_t offset) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    NamedTensors parameters, Communicator* communicator, const ReducerOptions& options) {
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(std::move(parameters), communicator, options));
  absl::Status status = reducer->CheckParameters();
  if (!status.ok()) return status;
  for (const auto& [name, tensor] : reducer->parameters_) {
    reducer->descriptions_.push_back({.name = name,
                                      .numel = tensor.numel(),
                                      .element_bytes = static_cast<int64_t>(tensor.element_size()),
                                      .dtype = ScalarTypeName(tensor.scalar_type())});
  }
  const auto& descriptions = reducer->descriptions_;
  if (options.layout) {
    status = ValidateBucketLayout(*options.layout, descriptions);
    if (!status.ok()) return status;
    reducer->UseLayout(*options.layout);
  } else {
    reducer->UseLayout(MakeBucketLayout(descriptions, ReverseOrder(descriptions.size()),
                                        options.first_bucket_bytes, options.bucket_bytes));
  }
  reducer->AttachGradients();
  reducer->AddHooks();
  return reducer;
}

GradientReducer::GradientReducer(NamedTensors parameters, Communicator* communicator,
                                 const ReducerOptions& options)
    : parameters_(std::move(parameters)),
      communicator_(communicator),
      options_(options),
      views_(parameters_.size()),
      bucket_of_(parameters_.size()),
      used_(parameters_.size(), 0),
      arrived_(parameters_.size(), 0) {}

GradientReducer::~GradientReducer() {
  for (size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
  const bool busy =
      std::any_of(works_.begin(), works_.end(), [](const WorkPtr& work) { return !work->Done(); });
  if (!busy) return;
  // The communicator writes into buffers that are about to go.
  communicator_->Abort("the gradient reducer was destroyed while its all-reduces were under way");
  for (const WorkPtr& work : works_) (void)work->WaitHost();
}

absl::Status GradientReducer::CheckParameters() const {
  if (parameters_.empty()) {
    return absl::InvalidArgumentError("the model has no trainable parameters");
  }
  std::set<std::string> names;
  const torch::Device device = parameters_.front().second.device();
  for (const auto& [name, tensor] : parameters_) {
    const auto bad = [&name = name](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' ", what));
    };
    if (!names.insert(name).second) return bad("is listed twice");
    if (!tensor.requires_grad() || !tensor.is_leaf()) return bad("is not a trainable leaf");
    if (tensor.layout() != torch::kStrided) return bad("is not dense");
    if (tensor.device() != device) {
      return bad(
          absl::StrCat("is on ", tensor.device().str(), ", the first one on ", device.str()));
    }
    const auto type = CommunicatorType(tensor.scalar_type());
    if (!type.ok()) return bad(std::string(type.status().message()));
  }
  return absl::OkStatus();
}

void GradientReducer::UseLayout(BucketLayout layout) {
  layout_ = std::move(layout);
  flats_.clear();
  flat_gradients_.clear();
  compressed_.clear();
  const torch::Tensor& any = parameters_.front().second;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const Bucket& bucket = layout_.buckets[b];
    const torch::ScalarType type =
        bucket.entries.empty() ? torch::kFloat32
                               : parameters_[static_cast<size_t>(bucket.entries.front().parameter)]
                                     .second.scalar_type();
    flats_.push_back(torch::zeros({bucket.numel}, any.options().dtype(type).requires_grad(false)));
    compressed_.emplace_back();
    if (options_.compress && !alone() && type == torch::kFloat32 && !bucket.entries.empty()) {
      compressed_.back() =
          torch::empty({bucket.numel}, flats_[b].options().dtype(torch::kBFloat16));
    }
    for (const BucketEntry& entry : bucket.entries) {
      const auto index = static_cast<size_t>(entry.parameter);
      bucket_of_[index] = b;
      views_[index] = GradientView(flats_[b], parameters_[index].second, entry.offset);
    }
    const bool controls = b == static_cast<size_t>(layout_.control_bucket);
    const int64_t numel = controls ? layout_.control_offset : bucket.numel;
    if (numel > 0) flat_gradients_.push_back(flats_[b].narrow(0, 0, numel));
  }
}

void GradientReducer::AttachGradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].second.mutable_grad();
    if (!gradient.is_same(views_[i])) gradient = views_[i];
  }
}

void GradientReducer::AddHooks() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    hooks_.push_back(node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs,
                  const torch::autograd::variable_list& inputs) {
          GradientArrived(i, !inputs.empty() && inputs[0].defined());
          return outputs;
        })));
    accumulators_.push_back(std::move(node));
  }
}

void GradientReducer::Prepare(bool sync) {
  const torch::NoGradGuard no_grad;
  if (fresh_) {
    if (next_layout_) {
      UseLayout(*std::move(next_layout_));
      next_layout_.reset();
    } else {
      for (torch::Tensor& flat : flats_) flat.zero_();
    }
    AttachGradients();
    std::fill(used_.begin(), used_.end(), 0);
    fresh_ = false;
  }
  state_ = sync ? State::kSynchronizing : State::kAccumulating;
  if (!sync) return;
  ControlSlots()[kFlagSlot].fill_(flag_);
  std::fill(arrived_.begin(), arrived_.end(), 0);
  order_.clear();
  works_.clear();
  next_bucket_ = 0;
  pending_.clear();
  for (const Bucket& bucket : layout_.buckets) {
    pending_.push_back(static_cast<int>(bucket.entries.size()));
  }
}

void GradientReducer::GradientArrived(size_t parameter, bool defined) {
  if (state_ == State::kIdle || !defined || !error_.ok()) return;
  const auto& [name, tensor] = parameters_[parameter];
  if (!tensor.grad().defined() || tensor.grad().data_ptr() != views_[parameter].data_ptr()) {
    error_ = absl::FailedPreconditionError(absl::StrCat(
        "the gradient of parameter '", name,
        "' was replaced and is no view of its bucket any more; gradients are zeroed in place by "
        "the reducer: no zero_grad between Prepare and backward, no create_graph"));
    return;
  }
  used_[parameter] = 1;
  if (state_ != State::kSynchronizing) return;
  if (arrived_[parameter] != 0) {
    error_ = absl::FailedPreconditionError(absl::StrCat(
        "parameter '", name,
        "' got a second gradient after Prepare(true), when its bucket may be on its way already; "
        "use Prepare(false) for all backward passes but the last"));
    return;
  }
  arrived_[parameter] = 1;
  order_.push_back(static_cast<int>(parameter));
  --pending_[bucket_of_[parameter]];
  Launch();
}

void GradientReducer::Launch() {
  for (; next_bucket_ < flats_.size() && pending_[next_bucket_] == 0; ++next_bucket_) {
    if (alone()) continue;
    if (compressed_[next_bucket_].defined()) {
      ReduceCompressed(next_bucket_);
    } else {
      Reduce(flats_[next_bucket_], ReduceOp::kAvg);
    }
  }
}

void GradientReducer::Reduce(const torch::Tensor& buffer, ReduceOp op) {
  works_.push_back(communicator_->AllReduce(buffer.data_ptr(), static_cast<size_t>(buffer.numel()),
                                            *CommunicatorType(buffer.scalar_type()), op));
}

// Divided before it is rounded, so that no sum is larger than the largest gradient.
void GradientReducer::ReduceCompressed(size_t bucket) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& sent = compressed_[bucket];
  at::mul_out(sent, flats_[bucket], at::scalar_tensor(1.0 / communicator_->size()));
  if (bucket == static_cast<size_t>(layout_.control_bucket)) {
    sent_control_ = ControlSlots().clone();
    Reduce(sent_control_, ReduceOp::kAvg);
  }
  Reduce(sent, ReduceOp::kSum);
}

void GradientReducer::Decompress() {
  const torch::NoGradGuard no_grad;
  for (size_t b = 0; b < flats_.size(); ++b) {
    if (compressed_[b].defined()) flats_[b].copy_(compressed_[b]);
  }
  if (sent_control_.defined()) ControlSlots().copy_(sent_control_);
}

absl::Status GradientReducer::CheckAllUsed() const {
  std::string names;
  size_t count = 0;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i] != 0) continue;
    if (++count <= kNamesInMessageMax) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", parameters_[i].first);
    }
  }
  if (count == 0) return absl::OkStatus();
  if (count > kNamesInMessageMax) {
    absl::StrAppend(&names, " and ", count - kNamesInMessageMax, " more");
  }
  return absl::FailedPreconditionError(
      absl::StrCat(count, " of ", used_.size(), " parameters got no gradient in this step: ", names,
                   "; the loss does not depend on them. Freeze them (requires_grad = false), use "
                   "them, or allow it: train.unused_parameters = \"ignore\""));
}

absl::Status GradientReducer::Finish() {
  const bool synchronized = state_ == State::kSynchronizing;
  state_ = State::kIdle;
  if (!error_.ok() || !synchronized) return error_;
  if (!options_.allow_unused) {
    absl::Status status = CheckAllUsed();
    if (!status.ok()) return status;
  }
  // Buckets that wait for gradients of earlier micro-steps alone, or for none.
  std::fill(pending_.begin(), pending_.end(), 0);
  Launch();
  absl::Status status = WaitForWorks();
  if (status.ok()) Decompress();
  if (status.ok() && options_.allow_unused) status = DetachUnused();
  if (status.ok() && !options_.layout && !rebuilt_) status = AgreeOnLayout();
  // A copy: whoever scales all gradients at once scales the slots, too.
  reduced_control_ = ControlSlots().clone();
  fresh_ = status.ok();
  return status;
}

absl::Status GradientReducer::WaitForWorks() {
  absl::Status result;
  for (const WorkPtr& work : works_) {
    const absl::Status status = work->Wait();
    if (result.ok()) result = status;
  }
  return result;
}

// A parameter that no rank used keeps no gradient, or weight decay and momentum would move it
// (TR4).
absl::Status GradientReducer::DetachUnused() {
  const torch::NoGradGuard no_grad;
  torch::Tensor used = torch::empty({static_cast<int64_t>(used_.size())}, torch::kUInt8);
  std::copy(used_.begin(), used_.end(), used.data_ptr<uint8_t>());
  if (!alone()) {
    torch::Tensor shared = used.to(flats_.front().device());
    const absl::Status status =
        communicator_->AllReduce(shared.data_ptr(), used_.size(), DataType::kUInt8, ReduceOp::kMax)
            ->WaitHost();
    if (!status.ok()) return status;
    used = shared.cpu();
  }
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used.data_ptr<uint8_t>()[i] == 0) parameters_[i].second.mutable_grad() = torch::Tensor();
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::AgreeOnLayout() {
  // Parameters that did not come in this backward follow in the expected order.
  std::vector<int> order = order_;
  for (int index : ReverseOrder(parameters_.size())) {
    if (arrived_[static_cast<size_t>(index)] == 0) order.push_back(index);
  }
  if (!alone()) {
    const torch::NoGradGuard no_grad;
    torch::Tensor shared = torch::tensor(order, torch::kInt32).to(flats_.front().device());
    const absl::Status status =
        communicator_->Broadcast(shared.data_ptr(), order.size(), DataType::kInt32, 0)->WaitHost();
    if (!status.ok()) return status;
    const torch::Tensor agreed = shared.cpu();
    std::copy_n(agreed.data_ptr<int>(), order.size(), order.begin());
  }
  BucketLayout layout =
      MakeBucketLayout(descriptions_, order, options_.first_bucket_bytes, options_.bucket_bytes);
  absl::Status status = ValidateBucketLayout(layout, descriptions_);
  if (!status.ok()) return status;
  next_layout_ = std::move(layout);
  rebuilt_ = true;
  return absl::OkStatus();
}

torch::Tensor GradientReducer::ControlSlots() const {
  return flats_[static_cast<size_t>(layout_.control_bucket)].narrow(0, layout_.control_offset,
                                                                    kControlSlots);
}

void GradientReducer::AddLoss(const torch::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  ControlSlots()[kLossSlot].add_(loss);
}

GradientReducer::Control GradientReducer::control() const {
  const torch::Tensor slots = reduced_control_.cpu();
  const float* values = slots.data_ptr<float>();
  return {.flag = values[kFlagSlot], .loss = values[kLossSlot]};
}

}  // namespace ddprun
