#include "worker/trainer/operation_trace.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ddprun {

struct OperationTrace::Record {
  const std::vector<NamedTensor>& parameters;
  int depth = 0;  // operations call operations; only the outermost is of interest
  bool inputs_finite = true;
  bool has_inputs = false;
  std::string with;  // parameters among the inputs
  std::string first;
  std::string first_negative;  // −inf only
};

namespace {

// Callbacks are plain functions.
thread_local OperationTrace::Record* current = nullptr;

enum class Content { kFinite, kOnlyNegative, kNotFinite };

Content Look(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0)
    return Content::kFinite;
  const at::Tensor values = tensor.detach();
  if (values.isfinite().all().item<bool>()) return Content::kFinite;
  const bool only_negative =
      (values.isfinite() | values.eq(-std::numeric_limits<double>::infinity())).all().item<bool>();
  return only_negative ? Content::kOnlyNegative : Content::kNotFinite;
}

template <typename Visit>
void ForEachTensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

void NoteInput(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  current->has_inputs = true;
  if (Look(tensor) == Content::kNotFinite) current->inputs_finite = false;
  if (!tensor.has_storage()) return;
  for (const NamedTensor& item : current->parameters) {
    if (item.tensor.storage().data() != tensor.storage().data()) continue;
    absl::StrAppend(&current->with, current->with.empty() ? "" : ", ", item.name);
    return;
  }
}

std::unique_ptr<at::ObserverContext> Enter(const at::RecordFunction& function) {
  if (current == nullptr || current->depth++ > 0) return nullptr;
  const at::DisableRecordFunctionGuard not_ours;
  const at::NoGradGuard no_grad;
  current->inputs_finite = true;
  current->has_inputs = false;
  current->with.clear();
  for (const c10::IValue& input : function.inputs()) ForEachTensor(input, NoteInput);
  return nullptr;
}

void Leave(const at::RecordFunction& function, at::ObserverContext*) {
  if (current == nullptr || --current->depth > 0 || !current->first.empty()) return;
  // A constant, or memory that nothing was written to yet.
  const std::string name(absl::StripPrefix(function.name(), "aten::"));
  if (!current->has_inputs || absl::StrContains(name, "empty")) return;
  if (!current->inputs_finite) return;
  const at::DisableRecordFunctionGuard not_ours;
  const at::NoGradGuard no_grad;
  Content worst = Content::kFinite;
  for (const c10::IValue& output : function.outputs()) {
    ForEachTensor(output, [&](const at::Tensor& tensor) { worst = std::max(worst, Look(tensor)); });
  }
  if (worst == Content::kFinite) return;
  const std::string text =
      current->with.empty() ? name : absl::StrCat(name, " with ", current->with);
  if (worst == Content::kNotFinite) {
    current->first = text;
  } else if (current->first_negative.empty()) {
    current->first_negative = text;
  }
}

}  // namespace

OperationTrace::OperationTrace(const std::vector<NamedTensor>& parameters)
    : record_(new Record{.parameters = parameters}) {
  current = record_.get();
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Enter, &Leave)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OperationTrace::~OperationTrace() {
  at::removeCallback(handle_);
  current = nullptr;
}

std::string OperationTrace::FirstNonFinite() const {
  return record_->first.empty() ? record_->first_negative : record_->first;
}

}  // namespace ddprun
