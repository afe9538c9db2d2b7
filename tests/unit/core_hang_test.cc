// Hangs and pauses in the coordinator's core, and the verdict on who is behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/coordinator/hang_verdict.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using ::testing::HasSubstr;
using M = v1::CoordinatorMessage;

v1::WorkerPlace Place(uint32_t rank, uint64_t step, uint64_t started, uint64_t finished,
                      double still) {
  v1::WorkerPlace place;
  place.set_rank(rank);
  place.set_pid(100 + static_cast<int32_t>(rank));
  place.set_speaks(true);
  place.set_step(step);
  place.set_collective_started(started);
  place.set_collective_finished(finished);
  place.set_seconds_still(still);
  return place;
}

v1::WorkerPlace Plain(uint32_t rank, double still) {
  v1::WorkerPlace place = Place(rank, 0, 0, 0, still);
  place.set_speaks(false);
  return place;
}

HangVerdict Judge(const std::vector<v1::WorkerPlace>& places, bool complete = true) {
  std::map<uint32_t, v1::WorkerPlace> by_rank;
  for (const auto& place : places) by_rank[place.rank()] = place;
  return JudgeHang(by_rank, complete, 10);
}

TEST(HangVerdict, TheSmallestStepIsBehind) {
  const HangVerdict verdict = Judge({Place(0, 8, 4, 4, 12), Place(1, 7, 9, 9, 11)});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.reason, HasSubstr("step 7"));
}

// As gdb and py-spy show them, of a PyTorch program that knows no libddprun.
TEST(HangVerdict, StacksOfOtherProgramsNameTheRankThatTheOthersWaitFor) {
  const auto place = [](uint32_t rank, const std::string& stack) {
    v1::WorkerPlace made;
    made.set_rank(rank);
    made.set_seconds_still(11);
    made.set_stack(stack);
    return made;
  };
  const std::string waits =
      "Thread 2 (LWP 8):\n#0  epoll_wait ()\nThread 1 (LWP 7):\n#0  futex ()\n"
      "#6  0x7f in c10d::Work::wait(std::chrono::duration<long>) () from libtorch_cpu.so\n";
  const std::string pyspy =
      "Thread 9 (idle): \"MainThread\"\n    all_reduce (torch/distributed.py:1)";
  // Its background thread is in such a call all the time, which says nothing.
  const std::string sleeps =
      "Thread 2 (LWP 8):\n#0  c10d::ProcessGroupGloo::runLoop(int) ()\nThread 1 (LWP 7):\n#0  "
      "nanosleep ()\n";
  const HangVerdict verdict = Judge({place(0, waits), place(1, sleeps), place(2, pyspy)});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_EQ(verdict.seconds, 11);
  EXPECT_THAT(verdict.reason, HasSubstr("rank 1 is behind: the others wait in"));
  EXPECT_EQ(Judge({place(0, waits), place(1, sleeps), place(2, sleeps)}).rank, -1);
  EXPECT_EQ(Judge({place(0, waits), place(1, waits)}).rank, -1);
  EXPECT_EQ(Judge({place(0, sleeps), place(1, "thread 7 (python3): sleeping in futex")}).rank, -1);
}

TEST(HangVerdict, ThenTheFewestFinishedCollectives) {
  EXPECT_EQ(Judge({Place(0, 7, 5, 5, 12), Place(1, 7, 5, 4, 11)}).rank, 1);
}

TEST(HangVerdict, ThenTheOneThatHasNotComeToTheCollective) {
  const HangVerdict verdict =
      Judge({Place(0, 7, 5, 4, 12), Place(1, 7, 4, 4, 11), Place(2, 7, 5, 4, 13)});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.reason, HasSubstr("collective 5"));
}

TEST(HangVerdict, ThenTheLongestStill) {
  const HangVerdict verdict = Judge({Place(0, 7, 5, 4, 12), Place(1, 7, 5, 4, 12.5)});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_DOUBLE_EQ(verdict.seconds, 12.5);
}

TEST(HangVerdict, WhereAllStandAtTheSamePlaceItSaysSo) {
  const HangVerdict verdict = Judge({Place(0, 7, 5, 4, 12), Place(1, 7, 5, 4, 12.001)});
  EXPECT_EQ(verdict.rank, -1);
  EXPECT_FALSE(verdict.over);
  EXPECT_THAT(verdict.reason, HasSubstr("cannot be told"));
}

// Ranks that spin in a collective while one sleeps.
TEST(HangVerdict, OfOtherProgramsTheOneThatIsStill) {
  EXPECT_EQ(Judge({Plain(0, 0.1), Plain(1, 11), Plain(2, 0.2)}).rank, 1);
  EXPECT_EQ(Judge({Plain(0, 11), Plain(1, 11.5)}).rank, -1);
  EXPECT_EQ(Judge({Plain(0, 11), Plain(1, 15)}).rank, 1);
}

TEST(HangVerdict, OverWhenEveryRankHasMovedAgainAndEveryNodeAnswered) {
  EXPECT_TRUE(Judge({Place(0, 8, 0, 0, 1), Place(1, 8, 0, 0, 2)}).over);
  const HangVerdict silent = Judge({Place(0, 8, 0, 0, 1)}, /*complete=*/false);
  EXPECT_FALSE(silent.over);
  EXPECT_EQ(silent.rank, -1);
  EXPECT_THAT(silent.reason, HasSubstr("did not answer"));
}

class CoreHang : public ::testing::Test {
 protected:
  CoreHang() {
    h.spec.mutable_supervision()->set_hang_timeout_seconds(10);
    h.Start();
    h.ReadyAll();
    h.Clear();
  }
  void Stall(uint32_t rank) {
    v1::AgentMessage message;
    message.mutable_worker_stalled()->set_generation(h.state.generation.number);
    message.mutable_worker_stalled()->set_rank(rank);
    message.mutable_worker_stalled()->set_seconds(10);
    h.Say(h.NodeOf(rank), message);
  }
  // The node's answer: its two ranks.
  void Examined(const std::string& node, double still) {
    v1::AgentMessage message;
    auto* examined = message.mutable_workers_examined();
    examined->set_generation(h.state.generation.number);
    for (uint32_t rank = 0; rank < h.state.generation.workers.size(); ++rank) {
      if (h.NodeOf(rank) != node) continue;
      *examined->add_workers() = Place(rank, rank == 3 ? 6 : 7, 1, 1, still);
    }
    h.Say(node, message);
  }
  void Signalled(const std::string& node, int signal) {
    v1::AgentMessage message;
    message.mutable_workers_signalled()->set_generation(h.state.generation.number);
    message.mutable_workers_signalled()->set_signal(signal);
    h.Say(node, message);
  }
  std::vector<std::string> Nodes() const {
    std::vector<std::string> nodes;
    for (const Placement& placement : h.state.generation.placements) {
      nodes.push_back(placement.node);
    }
    return nodes;
  }
  CoreHarness h;
};

// Every node is asked once, however many ranks stand still; the generation ends when all answered.
TEST_F(CoreHang, AllNodesAreExaminedBeforeTheGenerationEnds) {
  Stall(0);
  Stall(3);
  for (const std::string& node : Nodes()) EXPECT_EQ(h.CountSent(node, M::kExamineWorkers), 1);
  Examined(Nodes()[0], 12);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  Examined(Nodes()[1], 12);
  EXPECT_EQ(h.state.phase, Phase::kStopping);
  EXPECT_EQ(h.Event("hang_found")["rank"], 3);
  h.StopAll();
  EXPECT_EQ(h.Event("generation_ended")["rank"], 3);
  EXPECT_EQ(h.Event("generation_ended")["cause"], "hang");
  EXPECT_EQ(h.Count("restart_scheduled"), 1);
}

TEST_F(CoreHang, ANodeThatDoesNotAnswerIsNotWaitedForForEver) {
  Stall(0);
  Examined(Nodes()[0], 12);
  h.Pass(19);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  h.Pass(2);
  EXPECT_EQ(h.state.phase, Phase::kStopping);
  EXPECT_EQ(h.Count("hang_found"), 1);
}

TEST_F(CoreHang, WhatMovesAgainGoesOnAndMayStandStillAgain) {
  Stall(0);
  for (const std::string& node : Nodes()) Examined(node, 1);
  EXPECT_EQ(h.Count("hang_over"), 1);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  h.Clear();
  Stall(0);
  EXPECT_EQ(h.CountSent(Nodes()[0], M::kExamineWorkers), 1);
}

TEST_F(CoreHang, AFailureMeanwhileIsTheCause) {
  Stall(0);
  h.Exit(1, 7);
  for (const std::string& node : Nodes()) Examined(node, 12);
  EXPECT_EQ(h.Count("hang_found"), 0);
  h.StopAll();
  EXPECT_EQ(h.Event("generation_ended")["rank"], 1);
}

// Ctrl-Z: told when every node has stopped its workers; nothing hangs meanwhile.
TEST_F(CoreHang, APauseIsToldWhenAllStandStill) {
  h.Ask(v1::ControlRequest::PAUSE);
  h.Ask(v1::ControlRequest::PAUSE);
  for (const std::string& node : Nodes()) EXPECT_EQ(h.CountSent(node, M::kSignalWorkers), 1);
  Signalled(Nodes()[0], SIGSTOP);
  EXPECT_EQ(h.Count("job_paused"), 0);
  Signalled(Nodes()[1], SIGSTOP);
  EXPECT_EQ(h.Count("job_paused"), 1);
  Stall(0);
  EXPECT_EQ(h.CountSent(Nodes()[0], M::kExamineWorkers), 0);
  h.Pass(5);
  h.Ask(v1::ControlRequest::CONTINUE);
  EXPECT_EQ(h.Event("job_continued")["seconds"], 5);
  EXPECT_EQ(h.LastSent(Nodes()[1], M::kSignalWorkers)->signal_workers().signal(), SIGCONT);
  h.Ask(v1::ControlRequest::CONTINUE);
  EXPECT_EQ(h.Count("job_continued"), 1);
}

// A failure during a pause ends the generation; the next one waits for the pause's end.
TEST_F(CoreHang, NoGenerationBeginsDuringAPause) {
  h.Ask(v1::ControlRequest::PAUSE);
  h.FailGeneration();
  EXPECT_EQ(h.Count("generation_ended"), 1);
  EXPECT_EQ(h.Count("job_paused"), 1);
  h.Pass(3600);  // also no deadline for nodes
  EXPECT_FALSE(h.outcome);
  EXPECT_EQ(h.state.generation.number, 1u);
  h.Ask(v1::ControlRequest::CONTINUE);
  EXPECT_EQ(h.choosing, 2u);
  h.Choose();
  EXPECT_EQ(h.state.phase, Phase::kRunning);
}

TEST_F(CoreHang, APauseWhileTheCheckpointIsChosenHoldsTheStart) {
  h.FailGeneration();
  ASSERT_EQ(h.choosing, 2u);
  h.Ask(v1::ControlRequest::PAUSE);
  EXPECT_EQ(h.Count("job_paused"), 1);
  h.Choose();
  EXPECT_EQ(h.Count("generation_started"), 0);
  h.Ask(v1::ControlRequest::CONTINUE);
  h.Choose();
  EXPECT_EQ(h.Count("generation_started"), 1);
}

TEST_F(CoreHang, AStopEndsAPauseAndDuringAStopThereIsNone) {
  h.Ask(v1::ControlRequest::PAUSE);
  h.Ask(v1::ControlRequest::STOP, SIGTERM);
  EXPECT_EQ(h.LastSent(Nodes()[0], M::kSignalWorkers)->signal_workers().signal(), SIGCONT);
  EXPECT_EQ(h.CountSent(Nodes()[0], M::kEdgeRequest), 1);
  h.Clear();
  h.Ask(v1::ControlRequest::PAUSE);
  EXPECT_EQ(h.CountSent(Nodes()[0], M::kSignalWorkers), 0);
}

}  // namespace
}  // namespace ddprun::coordinator
