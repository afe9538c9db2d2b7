// The agreed step: whatever the moment of a request, all ranks checkpoint and stop after the same
// step, and nobody waits for ever.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>

#include "tests/unit/client_keeper.h"

namespace ddprun {
namespace {

constexpr int kBoth = DDPRUN_CHECKPOINT | DDPRUN_STOP;

void Request(FakeKeeper& keeper, int id, const char* purpose) {
  keeper.Send({{"TYPE", "EdgeRequest"}, {"ID", std::to_string(id)}, {"PURPOSE", purpose}});
}

void Agree(FakeKeeper& keeper, int id, int64_t step, const char* purpose) {
  keeper.Send({{"TYPE", "CheckpointAt"},
               {"ID", std::to_string(id)},
               {"STEP", std::to_string(step)},
               {"PURPOSE", purpose}});
}

// Asks for an edge and returns the answer, or -1.
int64_t AskEdge(FakeKeeper& keeper, int id, const char* purpose) {
  Request(keeper, id, purpose);
  Packet edge = keeper.ReceiveType("Edge");
  EXPECT_EQ(edge["ID"], std::to_string(id));
  return edge.empty() ? -1 : std::stoll(edge["STEP"]);
}

std::future<int> StepInThread(ddprun_handle* d, int64_t step) {
  return std::async(std::launch::async, [d, step] { return ddprun_step_done(d, step, 0); });
}

// Asks until the answer shows that the training thread stands at `step`; returns the ids used,
// beginning with first_id. All but the last were answered with the edge after it.
int AskUntilWaiting(FakeKeeper& keeper, int first_id, int64_t step, const char* purpose) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (keeper.PageField<uint32_t>(12) != DDPRUN_PHASE_CHECKPOINT &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  for (int id = first_id; id < first_id + 6; ++id) {
    if (AskEdge(keeper, id, purpose) == step) return id;
    Agree(keeper, id, step + 100, "checkpoint");  // out of the way
  }
  ADD_FAILURE() << "the training thread never waits at step " << step;
  return -1;
}

void ResumeAt40(ddprun_settings* settings) {
  settings->resume_step = 40;
}

TEST(ClientEdge, ARunningStepIsAnsweredWithTheNextEdge) {
  LaunchedWorker worker(ResumeAt40);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 41);
  auto step = StepInThread(worker.handle(), 41);
  Agree(worker.keeper(), 1, 42, "checkpoint");
  EXPECT_EQ(step.get(), 0);
  EXPECT_EQ(ddprun_step_done(worker.handle(), 42, 0), DDPRUN_CHECKPOINT);
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "checkpoint"), 43);
}

TEST(ClientEdge, ARankThatWaitsIsAnsweredWithTheEdgeWhereItStands) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 1);
  auto step = StepInThread(worker.handle(), 1);
  const int stop_id = AskUntilWaiting(worker.keeper(), 2, 1, "stop");
  // One answer is not enough: the rank has promised to stand still for the other.
  Agree(worker.keeper(), 1, 2, "checkpoint");
  EXPECT_EQ(step.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  Agree(worker.keeper(), stop_id, 1, "stop");
  EXPECT_EQ(step.get(), kBoth);
}

TEST(ClientEdge, TwoRequestsForOneStepAreOneCheckpoint) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 1);
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "stop"), 1);
  Agree(worker.keeper(), 2, 1, "stop");
  Agree(worker.keeper(), 1, 1, "checkpoint");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), kBoth);
}

TEST(ClientEdge, ARepeatedRequestGetsTheSameAnswer) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 1);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 1);
  Agree(worker.keeper(), 1, 1, "checkpoint");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), DDPRUN_CHECKPOINT);
}

TEST(ClientEdge, AfterAStopTheEdgeIsWhereItStopped) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 1);
  Agree(worker.keeper(), 1, 1, "stop");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), kBoth);
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "checkpoint"), 1);
}

TEST(ClientEdge, ACheckpointThatTheProgramIgnoresIsFailedAtItsNextStep) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 1);
  Agree(worker.keeper(), 1, 1, "checkpoint");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), DDPRUN_CHECKPOINT);
  EXPECT_EQ(ddprun_step_done(worker.handle(), 2, 0), 0);
  Packet failed = worker.keeper().ReceiveType("CheckpointFailed");
  EXPECT_EQ(failed["STEP"], "1");
  EXPECT_EQ(failed["REASON"], "the program did not begin this checkpoint");
}

TEST(ClientEdge, ARankThatFinishedAnswersWithItsLastStepAndFailsWhatItWillNotWrite) {
  LaunchedWorker worker;
  ASSERT_EQ(ddprun_step_done(worker.handle(), 1, 0), 0);
  ASSERT_EQ(ddprun_finish(worker.handle()), 0);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 1);
  Agree(worker.keeper(), 1, 1, "stop");
  EXPECT_EQ(worker.keeper().ReceiveType("CheckpointFailed")["STEP"], "1");
}

TEST(ClientEdge, ARequestThatComesTooLateForTheLoopIsFailedAtTheFinish) {
  LaunchedWorker worker;
  ASSERT_EQ(ddprun_step_done(worker.handle(), 1, 0), 0);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "checkpoint"), 2);
  Agree(worker.keeper(), 1, 2, "checkpoint");
  // The answer to a later request shows that the agreement was read.
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "checkpoint"), 2);
  ASSERT_EQ(ddprun_finish(worker.handle()), 0);
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "CheckpointFailed");
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Finished");
}

TEST(ClientEdge, AtTheAnnouncedLastStepNobodyWaitsAndNothingIsAsked) {
  LaunchedWorker worker;
  ddprun_progress_info(worker.handle(), 1, 1, 2, 0);
  ASSERT_EQ(ddprun_step_done(worker.handle(), 1, 0), 0);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 2);
  EXPECT_EQ(ddprun_step_done(worker.handle(), 2, 0), 0);
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "stop"), 2);
  Agree(worker.keeper(), 1, 2, "stop");
  Agree(worker.keeper(), 2, 2, "stop");
  EXPECT_EQ(AskEdge(worker.keeper(), 3, "checkpoint"), 2);
  ASSERT_EQ(ddprun_finish(worker.handle()), 0);
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "CheckpointFailed");  // it wrote no last checkpoint
}

TEST(ClientEdge, TheLastCheckpointAnswersARequestForTheLastStep) {
  LaunchedWorker worker;
  ddprun_progress_info(worker.handle(), 1, 1, 1, 0);
  ASSERT_EQ(ddprun_step_done(worker.handle(), 1, 0), 0);
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 1);
  EXPECT_EQ(ddprun_checkpoint_begin(worker.handle(), 1), DDPRUN_EIO);  // no folder: but begun
  Agree(worker.keeper(), 1, 1, "stop");
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "stop"), 1);
  ASSERT_EQ(ddprun_finish(worker.handle()), 0);
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Finished");
}

TEST(ClientEdge, APeriodicCheckpointBegunBeforeStepDoneIsNotAskedAgainButTheStopIs) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 1);
  EXPECT_EQ(ddprun_checkpoint_begin(worker.handle(), 1), DDPRUN_EIO);
  Agree(worker.keeper(), 1, 1, "stop");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), DDPRUN_STOP);
}

TEST(ClientEdge, AnAgreementWithoutARequestIsObeyedWhenTheStepIsAhead) {
  LaunchedWorker worker;
  Agree(worker.keeper(), 9, 2, "checkpoint");
  EXPECT_EQ(AskEdge(worker.keeper(), 10, "checkpoint"), 1);  // so the first was read
  Agree(worker.keeper(), 10, 2, "checkpoint");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), 0);
  EXPECT_EQ(ddprun_step_done(worker.handle(), 2, 0), DDPRUN_CHECKPOINT);
  Agree(worker.keeper(), 11, 1, "checkpoint");  // behind, and a later one was asked for: nothing
  EXPECT_EQ(AskEdge(worker.keeper(), 12, "checkpoint"), 3);
}

TEST(ClientEdge, AStopAgreedBeforeAnUnaskedCheckpointBeginsIsNotLost) {
  LaunchedWorker worker;
  EXPECT_EQ(AskEdge(worker.keeper(), 1, "stop"), 1);
  Agree(worker.keeper(), 1, 1, "stop");
  EXPECT_EQ(AskEdge(worker.keeper(), 2, "checkpoint"), 1);             // so the agreement was read
  EXPECT_EQ(ddprun_checkpoint_begin(worker.handle(), 1), DDPRUN_EIO);  // no folder: but begun
  Agree(worker.keeper(), 2, 1, "checkpoint");
  EXPECT_EQ(ddprun_step_done(worker.handle(), 1, 0), DDPRUN_STOP);
}

TEST(ClientEdge, AnswersWaitForRoomInTheSocket) {
  FakeKeeper keeper;
  ddprun_settings settings = keeper.Settings();
  settings.socket_fd = dup(keeper.worker_fd());
  ddprun_handle* d = nullptr;
  ASSERT_EQ(ddprun_open(&settings, &d), 0);
  int fillers = 0;
  while (send(keeper.worker_fd(), "TYPE=Filler\n", 12, MSG_DONTWAIT) == 12) ++fillers;
  Request(keeper, 1, "checkpoint");
  Request(keeper, 2, "stop");
  // When the second request has been taken, an answer to the first has been tried, in vain.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int unread = 1;
  while (unread > 0 && std::chrono::steady_clock::now() < deadline) {
    ASSERT_EQ(ioctl(keeper.fd(), SIOCOUTQ, &unread), 0);
  }
  EXPECT_EQ(unread, 0);
  EXPECT_EQ(keeper.Receive()["TYPE"], "Hello");
  for (int i = 0; i < fillers; ++i) EXPECT_EQ(keeper.Receive()["TYPE"], "Filler");
  EXPECT_EQ(keeper.Receive()["ID"], "1");
  EXPECT_EQ(keeper.Receive()["ID"], "2");
  ddprun_close(d);
}

// ---- the race: ranks in lock-step, requests at random moments

constexpr int kRanks = 4;
constexpr int kRounds = 200;

void Spin(std::mt19937& random, int most_us) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::microseconds(random() % static_cast<unsigned>(most_us));
  while (std::chrono::steady_clock::now() < end) {
  }
}

// step_done looks at the clock between its advance and its pause: requests fall in between.
int64_t SlowClock() {
  thread_local std::mt19937 random(static_cast<unsigned>(gettid()));
  Spin(random, 20);
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

struct Asked {
  int64_t step;
  int flags;
  bool operator==(const Asked&) const = default;
};

class LockStep {
 public:
  LockStep() {
    for (int rank = 0; rank < kRanks; ++rank) {
      keepers_.push_back(std::make_unique<FakeKeeper>());
      ddprun_settings settings = keepers_.back()->Settings();
      settings.socket_fd = dup(keepers_.back()->worker_fd());
      settings.run_dir = folder_.path().c_str();
      settings.rank = rank;
      settings.world_size = kRanks;
      settings.now_ns = SlowClock;
      EXPECT_EQ(ddprun_open(&settings, &handles_.emplace_back()), 0);
      keepers_.back()->ForgetWorkerEnd();
    }
  }
  ~LockStep() {
    for (ddprun_handle* handle : handles_) ddprun_close(handle);
  }

  // One training loop: the collective stands in the middle of a step.
  std::vector<Asked> Train(int rank, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Asked> asked;
    for (int64_t step = 1;; ++step) {
      Spin(random, 30);
      collective_.arrive_and_wait();
      Spin(random, 30);
      const int flags = ddprun_step_done(handles_[rank], step, 0);
      if (flags == 0) continue;
      asked.push_back({step, flags});
      if (flags < 0) return asked;
      ddprun_checkpoint_begin(handles_[rank], step);
      ddprun_checkpoint_finish(handles_[rank], step);
      if (flags & DDPRUN_STOP) break;
    }
    ddprun_finish(handles_[rank]);
    return asked;
  }

  // Asks all ranks in random order for `count` edges at once, and returns the agreed steps.
  std::vector<int64_t> Coordinate(int first_id, int count, const char* purpose,
                                  std::mt19937& random) {
    std::array<int, kRanks> order = {0, 1, 2, 3};
    for (int i = 0; i < count; ++i) {
      std::shuffle(order.begin(), order.end(), random);
      for (int rank : order) {
        Spin(random, 40);
        Request(*keepers_[rank], first_id + i, purpose);
      }
    }
    std::vector<int64_t> steps(count, -1);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int i = 0; i < count; ++i) {
        Packet edge = keepers_[rank]->ReceiveType("Edge");
        if (edge.empty()) return {};
        int64_t& step = steps[std::stoi(edge["ID"]) - first_id];
        step = std::max<int64_t>(step, std::stoll(edge["STEP"]));
      }
    }
    for (int i = count - 1; i >= 0; --i) {
      std::shuffle(order.begin(), order.end(), random);
      for (int rank : order) {
        Spin(random, 40);
        Agree(*keepers_[rank], first_id + i, steps[i], purpose);
      }
    }
    return steps;
  }

  // Every rank reports the step; then it is committed.
  bool Commit(int64_t step) {
    for (auto& keeper : keepers_) {
      if (keeper->ReceiveType("ShardsWritten")["STEP"] != std::to_string(step)) return false;
    }
    for (auto& keeper : keepers_) {
      keeper->Send({{"TYPE", "CheckpointCommitted"}, {"STEP", std::to_string(step)}});
    }
    return true;
  }

 private:
  TemporaryFolder folder_{"/dev/shm"};  // a busy disk must not slow the race down
  std::vector<std::unique_ptr<FakeKeeper>> keepers_;
  std::vector<ddprun_handle*> handles_;
  std::barrier<> collective_{kRanks};
};

// TR: a checkpoint on demand and a stop are at one step on all ranks (DESIGN, "Stops").
TEST(ClientEdge, AllRanksAgreeWhateverTheMomentOfTheRequest) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  auto job = std::make_unique<LockStep>();
  std::vector<std::future<std::vector<Asked>>> ranks;
  ranks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&job, rank, seed] {
      return job->Train(rank, seed + static_cast<unsigned>(rank));
    }));
  }
  std::mt19937 random(seed + 100);
  std::vector<Asked> expected;
  bool alive = true;
  for (int round = 0; alive && round < kRounds; ++round) {
    Spin(random, 200);
    const int count = round % 5 == 4 ? 2 : 1;
    std::vector<int64_t> steps = job->Coordinate(10 * round, count, "checkpoint", random);
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    alive = !steps.empty();
    for (const int64_t step : steps) {
      expected.push_back({step, DDPRUN_CHECKPOINT});
      alive = alive && job->Commit(step);
    }
  }
  if (alive) {
    const std::vector<int64_t> steps = job->Coordinate(10 * kRounds, 1, "stop", random);
    alive = !steps.empty() && job->Commit(steps[0]);
    if (alive) expected.push_back({steps[0], kBoth});
  }
  if (!alive) {  // the ranks hang in the barrier: no way to join them
    std::printf("no agreement in round %zu, seed %u\n", expected.size(), seed);
    _exit(1);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(ranks[rank].get() == expected) << "rank " << rank << ", seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun
