// What a node finds out about a worker that has died: its error file, last lines, memory limit,
// core and the files it left. Real workers under a real keeper.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/process/node_harness.h"

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;

// L62: the real traceback, with a time that orders.
TEST(WorkerDeathTest, TheErrorFileIsReadWithItsOwnTime) {
  Node node(2, R"(if [ $RANK = 1 ]; then
    printf '{"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback\\n x", "timestamp": "%s"}}}' $(date +%s) > "$TORCHELASTIC_ERROR_FILE"
    exit 1; fi)");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  const v1::WorkerExited* exited = node.Exit(1);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->error().message(), "ValueError: bad");
  EXPECT_EQ(exited->error().traceback(), "Traceback\n x");
  EXPECT_LE(exited->error().time_ns(), exited->time_ns());
  EXPECT_GT(exited->error().time_ns(), exited->time_ns() - 5'000'000'000);
  EXPECT_NE(exited->error().time_ns() % 1'000'000'000, 0);
  EXPECT_EQ(exited->hint(), v1::EXIT_HINT_UNSPECIFIED);
  EXPECT_FALSE(node.Exit(0)->has_error());
}

// L62: a file of an earlier attempt is nobody's error.
TEST(WorkerDeathTest, ALeftOverErrorFileDoesNotCount) {
  Node node(1, "exit 3");
  fs::create_directories(node.folder() + "/run/logs/g1");
  std::ofstream(node.folder() + "/run/logs/g1/rank0.error.json") << R"({"message": "old"})";
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->exit_code(), 3);
  EXPECT_FALSE(node.Exit(0)->has_error());
}

TEST(WorkerDeathTest, GarbageInTheErrorFileIsOneLine) {
  Node node(1, "head -c 100000 /dev/urandom > $TORCHELASTIC_ERROR_FILE; exit 3");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->exit_code(), 3);
  EXPECT_FALSE(node.Exit(0)->has_error());
  EXPECT_TRUE(Contains(node.ConsoleText(), "the error file of rank 0")) << node.ConsoleText();
}

// L63, D1: a death that follows from another's says so; one of its own never does.
TEST(WorkerDeathTest, TheLastLinesGiveAHint) {
  Node node(3, R"(
    case $RANK in
    0) echo "[rank0] NCCL WARN ncclRemoteError: remote process exited or there was a network error"; exit 1;;
    1) echo "OSError: bind 127.0.0.1:$MASTER_PORT: Address already in use"; exit 1;;
    2) echo '{"message": "ValueError: mine"}' > $TORCHELASTIC_ERROR_FILE; echo NCCL communicator was aborted; exit 1;;
    esac)");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_TRUE(node.Exit(0) && node.Exit(1) && node.Exit(2));
  EXPECT_EQ(node.Exit(0)->hint(), v1::HINT_COMMUNICATION);
  EXPECT_EQ(node.Exit(1)->hint(), v1::HINT_PORT_COLLISION) << node.Log(1);
  EXPECT_EQ(node.Exit(2)->hint(), v1::EXIT_HINT_UNSPECIFIED);
}

TEST(WorkerDeathTest, FlightRecorderDumpsAreListedByTheRankThatLeftThem) {
  Node node(11, R"(test -n "$TORCH_FR_DUMP_TEMP_FILE" || exit 9
    echo dump > "${TORCH_NCCL_DEBUG_INFO_TEMP_FILE}$RANK"; exit $((RANK % 9 == 1)))");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_TRUE(node.Exit(1) && node.Exit(10) && node.Exit(2));
  ASSERT_EQ(node.Exit(1)->artifacts_size(), 1) << node.Exit(1)->DebugString();
  EXPECT_EQ(node.Exit(1)->artifacts(0), node.folder() + "/run/logs/g1/nccl_trace_rank1");
  ASSERT_EQ(node.Exit(10)->artifacts_size(), 1);
  EXPECT_EQ(node.Exit(10)->artifacts(0), node.folder() + "/run/logs/g1/nccl_trace_rank10");
  EXPECT_EQ(node.Exit(2)->artifacts_size(), 0);  // it ended well
}

TEST(WorkerDeathTest, APlaceForDumpsThatTheUserChoseStays) {
  Node node(
      1, "test $TORCH_NCCL_DEBUG_INFO_TEMP_FILE = /mine && test -z \"$TORCH_FR_DUMP_TEMP_FILE\"");
  (*node.spec().mutable_environment())["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = "/mine";
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->exit_code(), 0);
}

TEST(WorkerDeathTest, WhereTheCoreWentIsSaid) {
  std::ifstream pattern_file("/proc/sys/kernel/core_pattern");
  std::string pattern;
  std::getline(pattern_file, pattern);
  if (pattern.empty() || pattern[0] == '|' || pattern[0] == '/') {
    GTEST_SKIP() << "cores go elsewhere on this machine: " << pattern;
  }
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &before), 0);
  if (before.rlim_max == 0) GTEST_SKIP() << "the hard limit of core files is 0";
  const rlimit wanted = {before.rlim_max, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &wanted), 0);
  Node node(1, "exec /bin/sh -c 'kill -SEGV $$'");
  node.Begin();
  const bool ended = node.RunToEnd().has_value();
  setrlimit(RLIMIT_CORE, &before);
  ASSERT_TRUE(ended);
  ASSERT_NE(node.Exit(0), nullptr);
  const std::string where = node.Exit(0)->core_dump();
  ASSERT_TRUE(where.starts_with("core dump: " + node.folder())) << where;
  EXPECT_TRUE(fs::exists(where.substr(11))) << where;
}

TEST(WorkerDeathTest, ACoreThatWasNotAllowedIsSaidToo) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &none), 0);
  Node node(1, "kill -SEGV $$");
  node.Begin();
  const bool ended = node.RunToEnd().has_value();
  setrlimit(RLIMIT_CORE, &before);
  ASSERT_TRUE(ended);
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->signal(), SIGSEGV);
  std::ifstream pattern_file("/proc/sys/kernel/core_pattern");
  if (pattern_file.peek() != '|') {
    EXPECT_TRUE(Contains(node.Exit(0)->core_dump(), "ulimit -c unlimited"))
        << node.Exit(0)->core_dump();
  }
}

// A cgroup with a limit, and this process in it for as long as this lives.
class LimitedGroup {
 public:
  explicit LimitedGroup(uint64_t bytes) {
    const std::string root = "/sys/fs/cgroup/memory";
    if (!fs::exists(root + "/memory.limit_in_bytes")) {
      why_ = "there is no memory controller of cgroup v1 in " + root;
      return;
    }
    std::ifstream own("/proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {
      const size_t at = line.find(":memory:");
      if (at != std::string::npos) home_ = root + line.substr(at + 8);
    }
    folder_ = root + "/ddprun-test-" + std::to_string(getpid());
    std::error_code error;
    if (!fs::create_directory(folder_, error) ||
        !Write(folder_ + "/memory.limit_in_bytes", std::to_string(bytes)) ||
        !Write(folder_ + "/cgroup.procs", std::to_string(getpid()))) {
      why_ = "no cgroup can be made in " + root + " (needs root)";
    }
    // Without it the memory would go to swap first.
    Write(folder_ + "/memory.memsw.limit_in_bytes", std::to_string(bytes));
  }
  ~LimitedGroup() {
    if (!home_.empty()) Write(home_ + "/cgroup.procs", std::to_string(getpid()));
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  const std::string& why_not() const { return why_; }

 private:
  static bool Write(const std::string& path, const std::string& text) {
    std::ofstream out(path);
    out << text << std::flush;
    return out.good();
  }
  std::string why_, home_, folder_;
};

// S20: the kernel's killer is recognised, and its limit named.
TEST(WorkerDeathTest, AnOutOfMemoryKillIsRecognised) {
  LimitedGroup group(200 << 20);
  if (!group.why_not().empty()) GTEST_SKIP() << group.why_not();
  // tail keeps what has no end of line.
  Node node(2, "test $RANK = 1 && exec tail < <(head -c 1G /dev/zero); exec sleep 60");
  node.Begin();
  ASSERT_TRUE(node.RunUntil([&] { return node.Exit(1) != nullptr; }, 30));
  const v1::WorkerExited& exited = *node.Exit(1);
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_EQ(exited.out_of_memory().limit_bytes(), 200u << 20) << exited.DebugString();
  EXPECT_TRUE(Contains(exited.out_of_memory().text(), "OOM-killed, limit 200 MiB (cgroup /"))
      << exited.out_of_memory().text();
  node.Stop(v1::StopWorkers::KILL);
  ASSERT_TRUE(node.RunToEnd());
  // The other one was ours to kill.
  EXPECT_FALSE(node.Exit(0)->has_out_of_memory());
}

// S20: the child of a wrapper too, whose shell says 137 (L4's kind).
TEST(WorkerDeathTest, AnOutOfMemoryKillOfAChildIsRecognised) {
  LimitedGroup group(100 << 20);
  if (!group.why_not().empty()) GTEST_SKIP() << group.why_not();
  Node node(1, "head -c 1G /dev/zero | tail");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->exit_code(), 137);
  EXPECT_TRUE(node.Exit(0)->out_of_memory().text().starts_with(
      "a process that it had started was OOM-killed, limit 100 MiB (cgroup /"))
      << node.Exit(0)->DebugString();
}

// S20: a kill by somebody else is not the memory's.
TEST(WorkerDeathTest, AnotherKillIsNotOutOfMemory) {
  Node node(1, "kill -KILL $$");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->signal(), SIGKILL);
  EXPECT_FALSE(node.Exit(0)->has_out_of_memory());
}

// S10: what a lease that has run out kills has not failed by itself.
TEST(WorkerDeathTest, AnEndOfTheLeaseIsNoFailureOfTheWorker) {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  Node node(1, "exec sleep 600");
  node.Begin(now.tv_sec * 1'000'000'000LL + now.tv_nsec + 500'000'000);
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(node.Exit(0), nullptr);
  EXPECT_EQ(node.Exit(0)->signal(), SIGKILL);
  EXPECT_TRUE(node.Exit(0)->stopped_by_us());
  EXPECT_EQ(node.gone()->reason, "its lease ran out");
}

}  // namespace
}  // namespace ddprun::testing
