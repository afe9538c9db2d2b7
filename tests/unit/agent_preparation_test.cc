// Steps before the workers of a generation start: their order, and what a cancel leaves out.
#include <gtest/gtest.h>

#include "launcher/agent/preparation.h"

namespace ddprun::agent {
namespace {

using State = PreparationResult::State;

// Works for so many calls, then ends as told; writes down what happens to it.
class FakeStep : public PreparationStep {
 public:
  FakeStep(std::string name, int calls, State end, std::string* journal)
      : name_(std::move(name)), calls_(calls), end_(end), journal_(journal) {}
  ~FakeStep() override { *journal_ += "-" + name_ + " "; }
  PreparationResult Advance(int64_t) override {
    *journal_ += name_ + " ";
    if (cancelled_) return {State::kFailed, "cancelled"};
    if (calls_-- > 0) return {};
    return {end_, name_ + " says so"};
  }
  void Cancel() override {
    *journal_ += "!" + name_ + " ";
    cancelled_ = true;
  }
  int64_t NextDeadlineNs() const override { return 77; }
  std::vector<int32_t> UnkillablePids() const override { return {static_cast<int32_t>(name_[0])}; }

 private:
  std::string name_;
  int calls_;
  State end_;
  std::string* journal_;
  bool cancelled_ = false;
};

TEST(PreparationTest, StepsFollowOneAnotherAndTheirLinesAreKept) {
  std::string journal;
  Preparation preparation;
  preparation.Add(std::make_unique<FakeStep>("a", 1, State::kReady, &journal));
  preparation.Add(std::make_unique<FakeStep>("b", 0, State::kReady, &journal));
  EXPECT_EQ(preparation.NextDeadlineNs(), 0) << "nothing has begun";
  EXPECT_EQ(preparation.Advance(1).state, State::kWorking);
  EXPECT_EQ(preparation.NextDeadlineNs(), 77);
  EXPECT_EQ(preparation.Advance(2).state, State::kReady);
  EXPECT_EQ(journal, "a a -a b -b ");
  EXPECT_EQ(preparation.TakeLines(), (std::vector<std::string>{"a says so", "b says so"}));
  EXPECT_EQ(preparation.unkillable_pids(), (std::vector<int32_t>{'a', 'b'}));
}

TEST(PreparationTest, NothingFollowsAFailure) {
  std::string journal;
  Preparation preparation;
  preparation.Add(std::make_unique<FakeStep>("a", 0, State::kFailed, &journal));
  preparation.Add(std::make_unique<FakeStep>("b", 0, State::kReady, &journal));
  const PreparationResult result = preparation.Advance(1);
  EXPECT_EQ(result.state, State::kFailed);
  EXPECT_EQ(result.text, "a says so");
  EXPECT_EQ(journal, "a -a -b ");
}

TEST(PreparationTest, ACancelEndsTheRunningStepAndBeginsNoOther) {
  std::string journal;
  Preparation preparation;
  preparation.Add(std::make_unique<FakeStep>("a", 9, State::kReady, &journal));
  preparation.Add(std::make_unique<FakeStep>("b", 0, State::kReady, &journal));
  EXPECT_EQ(preparation.Advance(1).state, State::kWorking);
  preparation.Cancel();
  preparation.Cancel();
  EXPECT_EQ(preparation.Advance(2).state, State::kFailed);
  EXPECT_EQ(journal, "a !a a -a -b ");
}

TEST(PreparationTest, ACancelBeforeItBeginsLeavesAllOut) {
  std::string journal;
  Preparation preparation;
  preparation.Add(std::make_unique<FakeStep>("a", 0, State::kReady, &journal));
  preparation.Cancel();
  EXPECT_EQ(preparation.Advance(1).state, State::kFailed);
  EXPECT_EQ(journal, "-a ");
}

TEST(PreparationTest, WithoutStepsItIsReadyAtOnce) {
  Preparation preparation;
  EXPECT_EQ(preparation.Advance(1).state, State::kReady);
}

}  // namespace
}  // namespace ddprun::agent
