// ddprun-keeper and the output of workers: the log is exact, the console is a copy that never holds
// anybody up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/process/keeper_fake_worker.h"
#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

using ::testing::HasSubstr;

// L68: bytes are bytes.
TEST(KeeperOutput, LogsHoldTheWorkersBytesExactly) {
  constexpr size_t kBytes = 1'000'003;
  KeeperOptions options;
  for (int rank = 0; rank < 4; ++rank) {
    options.workers.push_back(Fake({"random", std::to_string(rank + 1), std::to_string(kBytes)},
                                   /*console=*/rank % 2 == 1));
  }
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(keeper.Log(rank) == RandomBytes(rank + 1, kBytes)) << "rank " << rank;
  }
}

TEST(KeeperOutput, ConsoleIsTheSameBytesLessThoseItSaysAreMissing) {
  constexpr size_t kBytes = 200'000;  // below what may wait
  KeeperProcess keeper({.workers = {Fake({"random", "9", std::to_string(kBytes)}, true)}});
  keeper.AwaitGone();
  EXPECT_TRUE(keeper.Console(0) == RandomBytes(9, kBytes));
}

TEST(KeeperOutput, LogIsAppendedTo) {
  KeeperOptions options{.workers = {Shell("echo second")}};
  options.workers[0].log = "/tmp/ddprun-keeper-append-" + std::to_string(getpid());
  for (const char* expected : {"second\n", "second\nsecond\n"}) {
    KeeperProcess keeper(options);
    keeper.AwaitGone();
    EXPECT_EQ(keeper.Log(0), expected);
  }
  unlink(options.workers[0].log.c_str());
}

// L70, S19: progress bars and lines without end.
TEST(KeeperOutput, CarriageReturnsAndEndlessLinesStayWhole) {
  constexpr size_t kLine = 10'000'000;
  KeeperProcess keeper({.workers = {Fake({"returns", "5000"}, true),
                                    Fake({"long-line", std::to_string(kLine)}, true)}});
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Log(0), HasSubstr("\rstep 4999"));
  EXPECT_EQ(keeper.Log(0).find('\n'), std::string::npos);
  EXPECT_TRUE(keeper.Log(1) == std::string(kLine, 'x'));
}

// S19, L76: training goes on although nobody reads the console.
TEST(KeeperOutput, StoppedConsoleReaderNeitherBlocksTheWorkerNorFillsMemory) {
  constexpr size_t kBytes = 50'000'000;
  KeeperProcess keeper({.workers = {Fake({"long-line", std::to_string(kBytes)}, true)}});
  const pid_t worker = static_cast<pid_t>(keeper.Await("Started", 0).Integer("PID"));
  ASSERT_TRUE(AwaitDeath(worker, kPatience)) << "blocked by a console that nobody reads";
  EXPECT_LT(StatusNumber(keeper.pid(), "VmHWM"), 16 * 1024) << "KiB";
  keeper.AwaitGone();
  size_t told = keeper.Console(0).size();
  int64_t dropped = 0;
  for (const Message& message : keeper.messages()) {
    if (message.packet.type() == "Console") dropped += message.Integer("DROPPED");
  }
  EXPECT_EQ(told + static_cast<size_t>(dropped), kBytes);
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(keeper.Log(0).size(), kBytes);
}

TEST(KeeperOutput, FullDiskIsToldAndDoesNotBlockTheWorker) {
  KeeperOptions options{.workers = {Fake({"long-line", "3000000"})}};
  options.workers[0].log = "/dev/full";
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 0);
  EXPECT_THAT(keeper.Console(0), HasSubstr("cannot write '/dev/full': No space left on device"));
  EXPECT_THAT(keeper.Console(0), HasSubstr("3000000 bytes of its output are not in '/dev/full'"));
}

TEST(KeeperOutput, ChattyWorkerDoesNotDelayTheOthersNews) {
  const WorkerOptions chatty = Fake({"long-line", "200000000"});
  KeeperProcess keeper({.workers = {chatty, chatty, Shell("sleep 0.05; exit 3")}});
  const Message exited = keeper.Await("Exited", 2);
  EXPECT_EQ(exited.Integer("CODE"), 3);
  const auto started = keeper.Await("Started", 2).received;
  EXPECT_LT(exited.received - started, Milliseconds(1000));
  keeper.Stop("kill");
  keeper.AwaitGone();
}

TEST(KeeperOutput, DescendantThatHoldsThePipeDoesNotDelayTheExit) {
  // Rank 1 keeps the generation open, so that the orphan of rank 0 lives on and goes on writing.
  KeeperProcess keeper({.workers = {Shell("echo before; (while :; do echo more; done) & exit 4"),
                                    Shell("exec sleep 999")}});
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 4);
  keeper.Stop("abort", 5000);
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Log(0), HasSubstr("before\n"));
}

}  // namespace
}  // namespace ddprun::keeper_test
