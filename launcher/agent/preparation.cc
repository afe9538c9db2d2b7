#include "launcher/agent/preparation.h"

#include <utility>

namespace ddprun::agent {

PreparationResult Preparation::Advance(int64_t now_ns) {
  using State = PreparationResult::State;
  while (!steps_.empty()) {
    if (cancelled_ && !begun_) break;
    begun_ = true;
    PreparationResult result = steps_.front()->Advance(now_ns);
    if (result.state == State::kWorking) return result;
    const std::vector<int32_t> left = steps_.front()->UnkillablePids();
    unkillable_.insert(unkillable_.end(), left.begin(), left.end());
    steps_.erase(steps_.begin());
    begun_ = false;
    if (result.state == State::kFailed) {
      steps_.clear();
      return result;
    }
    if (!result.text.empty()) lines_.push_back(std::move(result.text));
  }
  steps_.clear();
  if (cancelled_) return {State::kFailed, "it was stopped before its workers started"};
  return {State::kReady, ""};
}

void Preparation::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  if (begun_) steps_.front()->Cancel();
}

void Preparation::AddPolls(std::vector<pollfd>* polls) const {
  if (begun_) steps_.front()->AddPolls(polls);
}

int64_t Preparation::NextDeadlineNs() const {
  return begun_ ? steps_.front()->NextDeadlineNs() : 0;
}

std::vector<std::string> Preparation::TakeLines() {
  return std::exchange(lines_, {});
}

}  // namespace ddprun::agent
