// L65, S26: not every rank is ready in time. Who is behind, and what is done before the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/hang_report.h"
#include "launcher/coordinator/init_verdict.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using M = v1::CoordinatorMessage;

v1::WorkerPlace Place(uint32_t rank, const std::string& phase, uint64_t started = 0,
                      uint64_t finished = 0) {
  v1::WorkerPlace place;
  place.set_rank(rank);
  place.set_pid(100 + static_cast<int32_t>(rank));
  place.set_speaks(true);
  place.set_phase(phase);
  place.set_collective_started(started);
  place.set_collective_finished(finished);
  return place;
}

v1::WorkerPlace Plain(uint32_t rank, const std::string& stack) {
  v1::WorkerPlace place;
  place.set_rank(rank);
  place.set_pid(100 + static_cast<int32_t>(rank));
  place.set_state("sleeping");
  place.set_stack(stack);
  return place;
}

InitVerdict Judge(const std::vector<v1::WorkerPlace>& places,
                  const std::set<uint32_t>& without_place = {}) {
  std::map<uint32_t, v1::WorkerPlace> by_rank;
  std::set<uint32_t> missing = without_place;
  for (const auto& place : places) {
    by_rank[place.rank()] = place;
    missing.insert(place.rank());
  }
  return JudgeInit(missing, by_rank);
}

// S26: the ranks that wait in a collective are not behind; the one that has not come is.
TEST(InitVerdict, NamesTheRankThatHasNotComeToTheCollectiveOfTheOthers) {
  v1::WorkerPlace waits = Place(0, "connecting", 3, 2);
  waits.set_collective("all_reduce");
  v1::WorkerPlace too = waits;
  too.set_rank(2);
  const InitVerdict verdict = Judge({waits, Place(1, "loading", 2, 2), too});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_EQ(verdict.reason,
            "rank 1 is behind (rank 1: loading; ranks 0, 2: waiting in collective 3 (all_reduce))");
}

TEST(InitVerdict, ConnectingIsWaiting) {
  EXPECT_EQ(Judge({Place(0, "connecting"), Place(1, "connecting"), Place(2, "starting")}).rank, 2);
}

TEST(InitVerdict, OfThoseThatAllWaitTheOneACollectiveBehind) {
  EXPECT_EQ(Judge({Place(0, "connecting", 3, 2), Place(1, "connecting", 2, 1)}).rank, 1);
}

TEST(InitVerdict, SaysWhereItCannotBeTold) {
  const InitVerdict same = Judge({Place(0, "connecting", 3, 2), Place(1, "connecting", 3, 2)});
  EXPECT_EQ(same.rank, -1);
  EXPECT_EQ(same.reason, "all of them wait (ranks 0, 1: waiting in collective 3)");
  const InitVerdict two =
      Judge({Place(0, "loading"), Place(1, "starting"), Place(2, "connecting")});
  EXPECT_EQ(two.rank, -1);
  EXPECT_THAT(two.reason, HasSubstr("cannot be told which is behind (rank 0: loading; rank 1:"));
}

// Programs of which only the stack is known, as py-spy and gdb print it.
TEST(InitVerdict, ReadsTheMainThreadsStack) {
  const std::string in_nccl =
      "Thread 2 (Thread 0x7f (LWP 12) \"python\"):\n#0  poll ()\n\n"
      "Thread 1 (Thread 0x7e (LWP 11) \"python\"):\n#0  poll ()\n#1  pncclCommInitRankConfig ()\n";
  const std::string elsewhere =
      "Thread 2 (Thread 0x7f (LWP 12) \"python\"):\n#0  c10d::ProcessGroupNCCL::runLoop ()\n\n"
      "Thread 1 (Thread 0x7e (LWP 11) \"python\"):\n#0  clock_nanosleep ()\n#1  main ()\n";
  const InitVerdict verdict = Judge({Plain(0, in_nccl), Plain(1, elsewhere), Plain(2, in_nccl)});
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.reason, HasSubstr("ranks 0, 2: waiting in pncclCommInitRankConfig"));
  const std::string python =
      "Process 11: python train.py\nThread 11 (idle): \"MainThread\"\n"
      "    _store_based_barrier (torch/distributed/distributed_c10d.py:900)\n"
      "    main (train.py:9)\nThread 12 (idle): \"loader\"\n    get (queue.py:171)\n";
  const std::string reading =
      "Process 12: python train.py\nThread 12 (idle): \"MainThread\"\n    read (data.py:7)\n"
      "Thread 13 (idle): \"other\"\n    all_reduce (x.py:1)\n";
  EXPECT_EQ(Judge({Plain(0, python), Plain(1, reading)}).rank, 1);
}

TEST(InitVerdict, ARankOfASilentNodeMayBeTheOneBehind) {
  const InitVerdict verdict = Judge({Place(0, "connecting")}, {3});
  EXPECT_EQ(verdict.rank, 3);
  EXPECT_THAT(verdict.reason, HasSubstr("rank 3: its node did not answer"));
}

TEST(InitVerdict, ManyRanksAreOneShortLine) {
  std::vector<v1::WorkerPlace> places;
  for (uint32_t rank = 0; rank < 4096; ++rank) {
    places.push_back(Place(rank, "connecting", 1000 + rank % 100, 7));
  }
  EXPECT_LT(Judge(places).reason.size(), 2000u);
}

class CoreInit : public ::testing::Test {
 protected:
  CoreInit() {
    h.spec.mutable_supervision()->set_init_timeout_seconds(20);
    h.Start();
    h.Clear();
  }
  void Ready(uint32_t rank) {
    v1::AgentMessage message;
    message.mutable_worker_ready()->set_generation(h.state.generation.number);
    message.mutable_worker_ready()->set_rank(rank);
    h.Say(h.NodeOf(rank), message);
  }
  // Rank 2 is loading, the others wait for it.
  void Examined(const std::string& node) {
    v1::AgentMessage message;
    message.mutable_workers_examined()->set_generation(h.state.generation.number);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      if (h.NodeOf(rank) != node) continue;
      *message.mutable_workers_examined()->add_workers() =
          Place(rank, rank == 2 ? "loading" : "connecting");
    }
    h.Say(node, message);
  }
  CoreHarness h;
};

TEST_F(CoreInit, AllNodesAreExaminedBeforeTheEndAndTheRankBehindIsNamed) {
  h.Pass(21);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  for (const char* node : {"a", "b"}) EXPECT_EQ(h.CountSent(node, M::kExamineWorkers), 1);
  Examined("a");
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  Examined("b");
  EXPECT_EQ(h.state.phase, Phase::kStopping);
  EXPECT_EQ(h.Event("init_timed_out")["rank"], 2);
  EXPECT_EQ(h.Event("init_timed_out")["report"], "reports/hang-g1.json");
  h.StopAll();
  EXPECT_EQ(h.Event("generation_ended")["cause"], "init_timeout");
  EXPECT_EQ(h.Event("generation_ended")["rank"], 2);
  EXPECT_THAT(std::string(h.Event("generation_ended")["reason"]),
              AllOf(HasSubstr("not ready within 20 s: ranks 0 (node a), 1 (node a), 2 (node b), 3"),
                    HasSubstr("rank 2 is behind"), HasSubstr("ranks 0, 1, 3: connecting")));
  ASSERT_EQ(h.state.failures.size(), 1u);
  EXPECT_EQ(h.state.failures[0].report, "reports/hang-g1.json");
}

TEST_F(CoreInit, TheExaminationIsBounded) {
  h.Pass(21);
  Examined("b");
  h.Pass(18);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  h.Pass(2);
  EXPECT_EQ(h.state.phase, Phase::kStopping);
}

// Ready a second too late is no reason to begin anew.
TEST_F(CoreInit, WhoBecomesReadyMeanwhileGoesOn) {
  h.Pass(21);
  for (uint32_t rank = 0; rank < 4; ++rank) Ready(rank);
  Examined("a");
  Examined("b");
  h.Pass(100);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  EXPECT_EQ(h.Count("init_timed_out"), 0);
}

TEST_F(CoreInit, AFailureMeanwhileIsWhatCounts) {
  h.Pass(21);
  h.Exit(2, 7);
  Examined("a");
  Examined("b");
  h.StopAll();
  EXPECT_EQ(h.Event("generation_ended")["cause"], "worker_error");
  EXPECT_EQ(h.Count("init_timed_out"), 0);
}

// A look at a standstill that is under way serves for both.
TEST_F(CoreInit, AnExaminationUnderWayIsNotBegunAgain) {
  h.Pass(19);
  v1::AgentMessage message;
  message.mutable_worker_stalled()->set_generation(1);
  message.mutable_worker_stalled()->set_rank(0);
  message.mutable_worker_stalled()->set_seconds(10);
  h.Say("a", message);
  h.Pass(2);
  EXPECT_EQ(h.CountSent("a", M::kExamineWorkers), 1);
  Examined("a");
  Examined("b");
  h.StopAll();
  EXPECT_EQ(h.Event("generation_ended")["cause"], "init_timeout");
}

TEST_F(CoreInit, APauseDefersIt) {
  h.Pass(21);
  h.Ask(v1::ControlRequest::PAUSE);
  h.Pass(100);
  EXPECT_EQ(h.state.phase, Phase::kRunning);
  h.Ask(v1::ControlRequest::CONTINUE);
  h.Pass(1);
  EXPECT_EQ(h.CountSent("a", M::kExamineWorkers), 2);
  h.Ask(v1::ControlRequest::STOP, 15);
  EXPECT_EQ(h.state.phase, Phase::kStopping);
}

}  // namespace
}  // namespace ddprun::coordinator
