// Every invariant of the checker can fail, and says which one it is.
#include "launcher/sim/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::sim {
namespace {

using coordinator::Effect;
using coordinator::PersistGeneration;
using coordinator::RecordEvent;
using coordinator::State;
using testing::HasSubstr;

class CheckerTest : public testing::Test {
 protected:
  CheckerTest() {
    state_.spec.set_nodes_max(3);
    state_.spec.mutable_restart()->set_max_restarts(2);
  }

  void Record(const char* name, nlohmann::ordered_json more = nlohmann::ordered_json::object()) {
    nlohmann::ordered_json event = {{"event", name}};
    event.update(more);
    After({RecordEvent{event}});
  }
  void After(const std::vector<Effect>& effects) { checker_.AfterCoordinator(state_, effects); }

  static v1::StartWorkers Order(uint64_t step, uint32_t first_rank, uint32_t count,
                                uint32_t world_size) {
    v1::StartWorkers order;
    order.set_generation(1);
    order.set_resume_step(step);
    order.set_first_rank(first_rank);
    order.set_local_world_size(count);
    order.set_world_size(world_size);
    return order;
  }
  static Gang GangOfFour() {
    Gang gang;
    gang.generation = 1;
    gang.world_size = 4;
    gang.ranks.resize(4);
    return gang;
  }

  State state_;
  Checker checker_;
  Disk disk_{0};
};

TEST_F(CheckerTest, I2RefusesAStepThatIsNotCommitted) {
  checker_.ResumeWasChosen({.generation = 1, .step = 5, .path = "", .rejected = {}}, disk_);
  EXPECT_THAT(checker_.violation(), HasSubstr("I2: "));
}

TEST_F(CheckerTest, I2RefusesARankWithAnotherStep) {
  checker_.ResumeWasChosen({.generation = 1, .step = 0, .path = "", .rejected = {}}, disk_);
  Gang gang = GangOfFour();
  checker_.NodeStarts(Order(0, 0, 2, 4), gang);
  EXPECT_FALSE(checker_.violated());
  checker_.NodeStarts(Order(3, 2, 2, 4), gang);
  EXPECT_THAT(checker_.violation(), HasSubstr("I2: "));
}

TEST_F(CheckerTest, I3RefusesARestartTooMany) {
  for (int i = 1; i <= 2; ++i) Record("restart_scheduled", {{"restarts_used", i}});
  EXPECT_FALSE(checker_.violated());
  Record("restart_scheduled", {{"restarts_used", 3}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I3: "));
}

TEST_F(CheckerTest, I3RefusesAFailureThatWasNotCharged) {
  state_.generation.failed = true;
  Record("generation_ended");
  EXPECT_FALSE(checker_.violated());
  Record("generation_ended");
  EXPECT_THAT(checker_.violation(), HasSubstr("I3: "));
}

TEST_F(CheckerTest, I3RefusesAGenerationWithoutARestart) {
  Record("generation_started", {{"nodes", {"a"}}});
  EXPECT_FALSE(checker_.violated());
  Record("generation_started", {{"nodes", {"a"}}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I3: "));
}

TEST_F(CheckerTest, I3CountsOnlyRestartsThatAreNotFree) {
  state_.spec.mutable_restart()->set_free_restarts_limit(1);
  Record("restart_scheduled", {{"restarts_used", 1}});
  Record("restart_scheduled", {{"restarts_used", 1}, {"free", true}});
  EXPECT_FALSE(checker_.violated());
  Record("restart_scheduled", {{"restarts_used", 1}, {"free", true}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I3: "));
}

TEST_F(CheckerTest, I3ForgetsRestartsOutsideTheWindow) {
  state_.spec.mutable_restart()->set_window_seconds(10);
  for (int i = 0; i < 5; ++i) {
    state_.now_ns += 11 * kSecondNs;
    Record("restart_scheduled", {{"restarts_used", 1}});
  }
  EXPECT_FALSE(checker_.violated());
  Record("restart_scheduled", {{"restarts_used", 1}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I3: "));
}

TEST_F(CheckerTest, I14RefusesWorkersOnANodeThatIsLeftOut) {
  Record("node_left_out", {{"node", "n1"}});
  coordinator::SendToNode send;
  send.node = "n1";
  *send.message.mutable_start_workers() = Order(0, 0, 2, 2);
  send.message.mutable_start_workers()->set_group_world_size(1);
  const std::vector<Effect> effects = {
      RecordEvent{{{"event", "generation_started"}, {"nodes", {"n1"}}}}, send};
  After(effects);
  EXPECT_THAT(checker_.violation(), HasSubstr("I14: "));
}

TEST_F(CheckerTest, I15RefusesARestartOfACodeThatForbidsIt) {
  state_.spec.mutable_restart()->add_no_restart_on(7);
  state_.failures.push_back({.exit_code = 8, .cause = coordinator::Cause::kWorkerError});
  Record("restart_scheduled", {{"restarts_used", 1}});
  EXPECT_FALSE(checker_.violated());
  state_.failures.back().exit_code = 7;
  Record("restart_scheduled", {{"restarts_used", 2}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I15: "));
}

TEST_F(CheckerTest, I17RefusesAPlannedResizeThatIsCharged) {
  state_.spec.mutable_restart()->set_free_restarts_limit(9);
  Record("resize_planned");
  Record("restart_scheduled", {{"restarts_used", 0}, {"free", true}});
  EXPECT_FALSE(checker_.violated());
  Record("resize_planned");
  Record("restart_scheduled", {{"restarts_used", 1}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I17: "));
}

TEST_F(CheckerTest, I18RefusesTooManyNodes) {
  state_.spec.set_nodes_min(1);
  state_.spec.set_nodes_max(2);
  Record("generation_started", {{"nodes", {"a", "b", "c"}}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I18: "));
}

TEST_F(CheckerTest, I19RefusesANodeThatMovesWhenAnotherIsReplaced) {
  state_.spec.set_nodes_max(3);
  Record("generation_started", {{"nodes", {"a", "b", "c"}}});
  Record("restart_scheduled", {{"restarts_used", 1}});
  Record("generation_started", {{"nodes", {"a", "x", "c"}}});
  EXPECT_FALSE(checker_.violated());
  Record("restart_scheduled", {{"restarts_used", 2}});
  Record("generation_started", {{"nodes", {"a", "c", "x"}}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I19: "));
}

TEST_F(CheckerTest, I5RefusesAValueOfAnotherGeneration) {
  v1::Value value;
  value.set_value("g12:0");
  checker_.WorkerReads(value, 12);
  EXPECT_FALSE(checker_.violated());
  checker_.WorkerReads(value, 1);
  EXPECT_THAT(checker_.violation(), HasSubstr("I5: "));
}

TEST_F(CheckerTest, I6RefusesARankGivenTwice) {
  Gang gang = GangOfFour();
  checker_.ResumeWasChosen({.generation = 1, .step = 0, .path = "", .rejected = {}}, disk_);
  checker_.NodeStarts(Order(0, 0, 2, 4), gang);
  EXPECT_FALSE(checker_.violated());
  checker_.NodeStarts(Order(0, 1, 2, 4), gang);
  EXPECT_THAT(checker_.violation(), HasSubstr("I6: "));
}

TEST_F(CheckerTest, I6RefusesAGapBetweenNodes) {
  std::vector<Effect> effects = {RecordEvent{{{"event", "generation_started"}, {"nodes", {"n1"}}}}};
  for (uint32_t first : {0, 3}) {
    coordinator::SendToNode send;
    *send.message.mutable_start_workers() = Order(0, first, 2, 4);
    send.message.mutable_start_workers()->set_group_world_size(2);
    send.message.mutable_start_workers()->set_group_rank(first == 0 ? 0 : 1);
    effects.push_back(send);
  }
  After(effects);
  EXPECT_THAT(checker_.violation(), HasSubstr("I6: "));
}

TEST_F(CheckerTest, I7RefusesAGenerationThatDoesNotGrow) {
  checker_.set_newest_generation(4);
  After({PersistGeneration{5}});
  EXPECT_FALSE(checker_.violated());
  After({PersistGeneration{5}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I7: "));
}

TEST_F(CheckerTest, I8RefusesACommitWithAMissingRank) {
  disk_.WriteShard(1, 10, 0, 2);
  disk_.WriteShard(2, 10, 1, 2);  // of another generation
  checker_.Committing({.generation = 1, .step = 10, .world_size = 2, .files = {}}, disk_);
  EXPECT_THAT(checker_.violation(), HasSubstr("I8: "));
}

TEST_F(CheckerTest, I8RefusesAStepThatGoesBackWithoutARejection) {
  state_.committed_step = 20;
  After({});
  state_.committed_step = 10;
  Record("checkpoint_rejected");
  EXPECT_FALSE(checker_.violated());
  state_.committed_step = 5;
  After({});
  EXPECT_THAT(checker_.violation(), HasSubstr("I8: "));
}

TEST_F(CheckerTest, I9RefusesAStopThatEndsOtherwise) {
  checker_.StopWasAsked(true, 15);
  After({coordinator::FinishJob{{"stopped", 143, "", ""}}});
  EXPECT_FALSE(checker_.violated());
  After({coordinator::FinishJob{{"failed", 1, "worker_failed", ""}}});
  EXPECT_THAT(checker_.violation(), HasSubstr("I9: "));
}

TEST(Disk, ResumesFromTheNewestWholeCheckpoint) {
  Disk disk(0);
  disk.WriteShard(1, 10, 0, 1);
  EXPECT_TRUE(disk.Commit(1, 10));
  EXPECT_FALSE(disk.Commit(1, 10));  // nothing is overwritten
  EXPECT_TRUE(disk.Commit(1, 20));
  EXPECT_TRUE(disk.DamageNewest());
  const coordinator::ResumeChosen chosen = disk.Choose(2);
  EXPECT_EQ(chosen.step, 10u);
  ASSERT_EQ(chosen.rejected.size(), 1u);
  EXPECT_EQ(chosen.rejected[0].step, 20u);
}

}  // namespace
}  // namespace ddprun::sim
