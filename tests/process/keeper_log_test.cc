// ddprun-keeper and the files of a log: rotation, the index beside it, a disk that fills up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "common/log_times.h"
#include "tests/process/keeper_fake_worker.h"
#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string Stream(const std::string& log) {
  std::string all;
  for (int i = 1; fs::exists(log + "." + std::to_string(i)); ++i) {
    all += ReadFile(log + "." + std::to_string(i));
  }
  return all + ReadFile(log);
}

// L68, L76: rotation keeps every byte, whatever the bytes are, with the console on and off.
TEST(KeeperLog, RotatedFilesInARowAreTheWorkersBytes) {
  constexpr size_t kBytes = 3'000'001;
  KeeperOptions options;
  for (int rank = 0; rank < 2; ++rank) {
    options.workers.push_back(
        Fake({"random", std::to_string(rank + 1), std::to_string(kBytes)}, rank == 1));
  }
  options.further = {"LOG_BYTES_MAX=200000", "LOG_FILES_KEPT=0"};
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(fs::exists(keeper.LogPath(rank) + ".15"));
    EXPECT_TRUE(Stream(keeper.LogPath(rank)) == RandomBytes(static_cast<int>(rank) + 1, kBytes));
  }
}

TEST(KeeperLog, OnlySoManyRotatedFilesAreKept) {
  KeeperOptions options{.workers = {Shell("seq -w 1 200000")}};  // 1,400,000 bytes
  options.further = {"LOG_BYTES_MAX=100000", "LOG_FILES_KEPT=2"};
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  const std::string log = keeper.LogPath(0);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(log).parent_path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_EQ(names.size(), 6u) << ::testing::PrintToString(names);  // 3 logs and their indices
  std::string kept;
  for (int i = 1; i < 100; ++i) kept += ReadFile(log + "." + std::to_string(i));
  kept += ReadFile(log);
  EXPECT_TRUE(kept.ends_with("199999\n200000\n"));
  EXPECT_GE(kept.size(), 100'000u);
  EXPECT_LE(kept.size(), 300'000u);
}

TEST(KeeperLog, IndexHoldsTheTimeOfEachPart) {
  KeeperProcess keeper({.workers = {Fake({"random", "1", "1000"})}});
  keeper.AwaitGone();
  const std::string times = ReadFile(keeper.LogPath(0) + kLogTimesSuffix);
  ASSERT_EQ(times.substr(0, kLogTimesHeaderBytes), kLogTimesHeader);
  ASSERT_EQ(times.size(), kLogTimesHeaderBytes + sizeof(LogTime));
  LogTime first;
  memcpy(&first, times.data() + kLogTimesHeaderBytes, sizeof first);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_GE(first.time_ns, keeper.Await("Started", 0).Integer("TIME_NS") - 1'000'000'000);
  EXPECT_LE(first.time_ns, keeper.Await("Exited", 0).Integer("TIME_NS") + 1'000'000'000);
}

// A crash at any moment of a rotation: the files in a row are the beginning of the stream.
TEST(KeeperLog, AKilledKeeperLeavesTheBeginningOfTheStream) {
  for (int round = 0; round < 10; ++round) {
    KeeperOptions options{.workers = {Shell("exec seq -w 1 9999999")}};
    options.further = {"LOG_BYTES_MAX=4096"};
    KeeperProcess keeper(options);
    keeper.Await("Started", 0);
    const std::string log = keeper.LogPath(0);
    const std::string awaited = log + "." + std::to_string(3 + 7 * round);
    const auto deadline = Clock::now() + kPatience;
    while (!fs::exists(awaited) && Clock::now() < deadline) sched_yield();
    kill(keeper.pid(), SIGKILL);
    keeper.AwaitExit();
    const std::string stream = Stream(log);
    ASSERT_GT(stream.size(), 4096u);
    for (size_t line = 0; line < stream.size() / 8; ++line) {
      ASSERT_EQ(std::stoull(stream.substr(line * 8, 7)), line + 1) << "round " << round;
    }
  }
}

// S19: a real disk that is full, and has room again later. Needs a mount, so root.
TEST(KeeperLog, LogGoesOnWhenTheDiskHasRoomAgain) {
  std::string disk = "/tmp/ddprun-disk-XXXXXX";
  ASSERT_NE(mkdtemp(disk.data()), nullptr);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8m") != 0) {
    const int error = errno;
    rmdir(disk.c_str());
    GTEST_SKIP() << "mounting a small tmpfs needs root: " << strerror(error);
  }
  struct Unmount {
    std::string path;
    ~Unmount() {
      umount2(path.c_str(), MNT_DETACH);
      rmdir(path.c_str());
    }
  } unmount{disk};
  // Fills the disk, says so, and goes on when somebody has made room. It waits for a file of its
  // own: a name that is gone does not mean yet that its blocks are free.
  KeeperOptions options{
      .workers = {Shell("head -c 3000000 /dev/zero; echo after; while [ -e " + disk +
                        "/full ]; do sleep 0.02; "
                        "done; echo room again; exit 7")}};
  options.workers[0].log = disk + "/rank0.log";
  {
    const std::string command =
        "touch " + disk + "/full && head -c 7500000 /dev/zero > " + disk + "/ballast";
    ASSERT_EQ(system(command.c_str()), 0);
  }
  KeeperProcess keeper(options);
  keeper.AwaitConsole(0, "No space left on device; its output is dropped");
  fs::remove(disk + "/ballast");
  fs::remove(disk + "/full");
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 7);  // the worker was never blocked
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Console(0), HasSubstr("can be written again; "));
  EXPECT_THAT(keeper.Console(0), HasSubstr(" bytes of its output are not in"));
  const std::string log = ReadFile(options.workers[0].log);
  EXPECT_TRUE(log.ends_with("room again\n"));
  EXPECT_GT(log.size(), 500'000u);
  EXPECT_LT(log.size(), 3'000'000u);
}

}  // namespace
}  // namespace ddprun::keeper_test
