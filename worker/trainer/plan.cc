#include "worker/trainer/plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun {
namespace {

std::string ActionText(const Action& action) {
  switch (action.kind) {
    case ActionKind::kLoad:
      return absl::StrCat("load", action.micro_batch);
    case ActionKind::kCount:
      return "count";
    case ActionKind::kForward:
      return absl::StrCat("forward", action.micro_batch, "[", action.first_block, ",",
                          action.last_block, ")");
    case ActionKind::kLoss:
      return absl::StrCat("loss", action.micro_batch);
    case ActionKind::kBackward:
      return absl::StrCat("backward", action.micro_batch, action.last_micro_batch ? "!" : "");
    case ActionKind::kReduce:
      return "reduce";
    case ActionKind::kUpdate:
      return "update";
  }
  return "unknown";
}

}  // namespace

std::vector<Action> PlanDataParallel(int blocks, int micro_batches, bool count_targets) {
  std::vector<Action> plan;
  const auto load = [&](int i) { plan.push_back({.kind = ActionKind::kLoad, .micro_batch = i}); };
  if (count_targets) {
    for (int i = 0; i < micro_batches; ++i) load(i);
    plan.push_back({ActionKind::kCount});
  }
  for (int i = 0; i < micro_batches; ++i) {
    const bool last = i + 1 == micro_batches;
    if (!count_targets) load(i);
    for (ActionKind kind : {ActionKind::kForward, ActionKind::kLoss, ActionKind::kBackward}) {
      plan.push_back({kind, i, 0, kind == ActionKind::kForward ? blocks : 0, last});
    }
  }
  plan.push_back({ActionKind::kReduce});
  plan.push_back({ActionKind::kUpdate});
  return plan;
}

std::string PlanText(const std::vector<Action>& plan) {
  return absl::StrJoin(
      plan, " ", [](std::string* out, const Action& action) { out->append(ActionText(action)); });
}

}  // namespace ddprun
