// libddprun's checkpoint calls: what is reported is durable and has the checksum it says; what
// failed is never reported.
#define XXH_INLINE_ALL
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>

#include "tests/unit/client_keeper.h"

// The library's file operations on the paths of a test, recorded and made to fail on demand
// (linked with --wrap).
namespace {
std::mutex operations_mutex;
std::vector<std::string> operations;
std::string fail_operation;  // one that begins so fails
int fail_after = 0;          // so many of them that do not come first
int fail_errno = 0;          // 0: of a write's bytes only some are written

std::string Leaf(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

bool Fails(const std::string& operation, const std::string& path) {
  if (path.find("ddprun-test-") == std::string::npos) return false;
  const std::lock_guard<std::mutex> lock(operations_mutex);
  operations.push_back(operation);
  if (fail_operation.empty() || !operation.starts_with(fail_operation)) return false;
  if (fail_after-- > 0) return false;
  fail_operation.clear();
  errno = fail_errno;
  return true;
}
}  // namespace

extern "C" {
int __real_open(const char* path, int flags, ...);
ssize_t __real_write(int fd, const void* data, size_t size);
int __real_fsync(int fd);
int __real_close(int fd);
int __real_rename(const char* from, const char* to);
int __real_unlink(const char* path);

int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if ((flags & O_CREAT) && Fails("create " + Leaf(path), path)) return -1;
  return __real_open(path, flags, mode);
}
ssize_t __wrap_write(int fd, const void* data, size_t size) {
  const std::string path = PathOf(fd);
  if (!Fails("write " + Leaf(path), path)) return __real_write(fd, data, size);
  return fail_errno == 0 ? __real_write(fd, data, size / 8192 * 4096) : -1;
}
int __wrap_fsync(int fd) {
  const std::string path = PathOf(fd);
  return Fails("fsync " + Leaf(path), path) ? -1 : __real_fsync(fd);
}
int __wrap_close(int fd) {
  const std::string path = PathOf(fd);
  const bool fails = Fails("close " + Leaf(path), path);
  const int error_number = errno;
  const int result = __real_close(fd);
  if (fails) errno = error_number;
  return fails ? -1 : result;
}
int __wrap_rename(const char* from, const char* to) {
  return Fails("rename " + Leaf(from) + " " + Leaf(to), from) ? -1 : __real_rename(from, to);
}
int __wrap_unlink(const char* path) {
  return Fails("unlink " + Leaf(path), path) ? -1 : __real_unlink(path);
}
}

namespace ddprun {
namespace {

namespace fs = std::filesystem;

class ClientCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    operations.clear();
    fail_operation.clear();
    ddprun_settings settings = keeper_.Settings();
    settings.socket_fd = dup(keeper_.worker_fd());
    settings.run_dir = folder_.path().c_str();
    settings.rank = 2;
    settings.world_size = 4;
    ASSERT_EQ(ddprun_open(&settings, &d_), 0);
    keeper_.ForgetWorkerEnd();
    ASSERT_EQ(keeper_.Receive()["TYPE"], "Hello");
  }
  void TearDown() override { ddprun_close(d_); }

  std::string Staging(int64_t step) const {
    return folder_.path() + "/checkpoints/.staging/g3-step-" + std::to_string(step);
  }
  void Settle(const char* type, int64_t step) {
    keeper_.Send({{"TYPE", type}, {"STEP", std::to_string(step)}, {"REASON", "rank 1: disk full"}});
  }
  void FailNext(const std::string& operation, int error_number, int after = 0) {
    fail_operation = operation;
    fail_errno = error_number;
    fail_after = after;
  }
  std::vector<std::string> Files(int64_t step) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Staging(step))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryFolder folder_;
  FakeKeeper keeper_;
  ddprun_handle* d_ = nullptr;
};

std::string Hash(const std::string& bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string hex;
  char digits[3];
  for (unsigned char byte : canonical.digest) {
    snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// C6: sizes and checksums of every file are known before anything is committed.
TEST_F(ClientCheckpoint, ReportsNameSizeAndChecksumOfEachFile) {
  std::string large;
  for (int i = 0; i < 5'000'000; ++i) large.push_back(static_cast<char>(i * i >> 3));
  const ddprun_piece pieces[] = {
      {large.data(), 3}, {nullptr, 0}, {large.data() + 3, large.size() - 3}};
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 50), 0);
  EXPECT_EQ(std::string(ddprun_checkpoint_dir(d_)), Staging(50));
  Packet started = keeper_.Receive();
  EXPECT_EQ(started["TYPE"], "CheckpointStarted");
  EXPECT_EQ(started["STEP"], "50");
  ASSERT_EQ(ddprun_checkpoint_writev(d_, 50, "large.bin", pieces, 3), 0);
  ASSERT_EQ(ddprun_checkpoint_write(d_, 50, "empty", nullptr, 0), 0);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 50), 0);
  Packet written = keeper_.Receive();
  EXPECT_EQ(written["TYPE"], "ShardsWritten");
  EXPECT_EQ(written["STEP"], "50");
  EXPECT_EQ(written["COUNT"], "2");
  EXPECT_EQ(written["FILE.0"], "large.bin 5000000 " + Hash(large));
  EXPECT_EQ(written["FILE.1"], "empty 0 99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Read(Staging(50) + "/large.bin"), large);
  EXPECT_EQ(Files(50), (std::vector<std::string>{"empty", "large.bin"}));
}

// C6: a file that goes past the page cache, also where a write is refused for its alignment, or
// ends early; the pieces end anywhere.
TEST_F(ClientCheckpoint, AStreamedFileIsWhole) {
  std::string large;
  while (large.size() < (40U << 20) + 12'345) large += "piece " + std::to_string(large.size());
  std::vector<ddprun_piece> pieces;
  for (size_t at = 0, size = 1; at < large.size(); at += pieces.back().size, size = size * 3 + 1) {
    pieces.push_back({large.data() + at, std::min(size, large.size() - at)});
  }
  struct {
    const char* fails;
    int error_number;
    int after;
  } const cases[] = {{"nothing", 0, 0}, {"write", EINVAL, 0}, {"write", EINVAL, 4},
                     {"write", 0, 0},   {"write", 0, 5},      {"write", EINTR, 2}};
  int64_t step = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.fails) + " " + std::to_string(c.error_number));
    ASSERT_EQ(ddprun_checkpoint_begin(d_, ++step), 0);
    FailNext(c.fails, c.error_number, c.after);
    ASSERT_EQ(ddprun_checkpoint_writev(d_, step, "a", pieces.data(), pieces.size()), 0)
        << ddprun_error(d_);
    ASSERT_EQ(ddprun_checkpoint_finish(d_, step), 0);
    EXPECT_EQ(keeper_.ReceiveType("ShardsWritten")["FILE.0"],
              "a " + std::to_string(large.size()) + " " + Hash(large));
    EXPECT_TRUE(Read(Staging(step) + "/a") == large);
    Settle("CheckpointCommitted", step);
    ASSERT_EQ(ddprun_checkpoint_wait(d_, step, 10), 0);
  }
}

// C1: wherever in a streamed file the disk ends.
TEST_F(ClientCheckpoint, AStreamedFileThatCannotBeWrittenIsRemoved) {
  const std::string large((33U << 20) + 1, 'x');
  for (const int after : {0, 3, 7, 8}) {
    SCOPED_TRACE(after);
    const int64_t step = after + 1;
    ASSERT_EQ(ddprun_checkpoint_begin(d_, step), 0);
    FailNext("write a.tmp", ENOSPC, after);
    EXPECT_EQ(ddprun_checkpoint_write(d_, step, "a", large.data(), large.size()), DDPRUN_EIO);
    EXPECT_EQ(std::string(ddprun_error(d_)),
              "cannot write " + Staging(step) + "/a.tmp.2: " + strerror(ENOSPC));
    EXPECT_TRUE(Files(step).empty());
    EXPECT_EQ(ddprun_checkpoint_finish(d_, step), DDPRUN_EIO);
    EXPECT_EQ(keeper_.ReceiveType("CheckpointFailed")["STEP"], std::to_string(step));
    Settle("CheckpointDropped", step);
    EXPECT_EQ(ddprun_checkpoint_wait(d_, step, 10), DDPRUN_EDROPPED);
  }
}

// C12: data before name, name before report.
TEST_F(ClientCheckpoint, EveryFileIsSyncedBeforeItsRenameAndTheFolderBeforeTheReport) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  ASSERT_EQ(ddprun_checkpoint_write(d_, 1, "a", "x", 1), 0);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 1), 0);
  EXPECT_EQ(operations, (std::vector<std::string>{
                            "create a.tmp.2", "write a.tmp.2", "fsync a.tmp.2", "close a.tmp.2",
                            "rename a.tmp.2 a", "fsync g3-step-1", "close g3-step-1"}));
}

struct Failure {
  const char* operation;
  int error_number;
  const char* what;
};

class ClientCheckpointFailure : public ClientCheckpoint,
                                public testing::WithParamInterface<Failure> {};

// C1: a write that failed leaves no file under either name, and the checkpoint is failed, even by a
// program that does not look at the codes.
TEST_P(ClientCheckpointFailure, LeavesNoFileAndIsNeverReportedAsWritten) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  FailNext(GetParam().operation, GetParam().error_number);
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, "a", "x", 1), DDPRUN_EIO);
  const std::string error = ddprun_error(d_);
  EXPECT_EQ(error, std::string("cannot ") + GetParam().what + " " + Staging(1) +
                       "/a.tmp.2: " + strerror(GetParam().error_number));
  EXPECT_TRUE(Files(1).empty());
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, "b", "x", 1), 0);
  EXPECT_EQ(ddprun_checkpoint_finish(d_, 1), DDPRUN_EIO);
  EXPECT_EQ(std::string(ddprun_error(d_)), error.substr(0, 255));
  EXPECT_EQ(keeper_.Receive()["TYPE"], "CheckpointStarted");
  Packet failed = keeper_.Receive();
  EXPECT_EQ(failed["TYPE"], "CheckpointFailed");
  EXPECT_EQ(failed["REASON"], error.substr(0, 255));
  EXPECT_EQ(ddprun_checkpoint_fail(d_, 1, "again"), 0);  // told once
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 1);
  Settle("CheckpointDropped", 1);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 10), DDPRUN_EDROPPED);
  EXPECT_EQ(ddprun_ready(d_), 0);
  EXPECT_EQ(keeper_.Receive()["TYPE"], "Ready");
}

INSTANTIATE_TEST_SUITE_P(Disk, ClientCheckpointFailure,
                         testing::Values(Failure{"create", EACCES, "create"},
                                         Failure{"write", ENOSPC, "write"},
                                         Failure{"fsync", EIO, "sync"},
                                         Failure{"close", EDQUOT, "close"},
                                         Failure{"rename", ENOENT, "rename"}),
                         [](const auto& test) { return std::string(test.param.operation); });

TEST_F(ClientCheckpoint, AFolderThatCannotBeSyncedFailsTheCheckpoint) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  ASSERT_EQ(ddprun_checkpoint_write(d_, 1, "a", "x", 1), 0);
  FailNext("fsync g3-step-1", EIO);
  EXPECT_EQ(ddprun_checkpoint_finish(d_, 1), DDPRUN_EIO);
  EXPECT_EQ(keeper_.ReceiveType("CheckpointFailed")["STEP"], "1");
}

TEST_F(ClientCheckpoint, AFolderThatCannotBeMadeFailsTheCheckpoint) {
  std::ofstream(folder_.path() + "/checkpoints") << "a file in the way";
  EXPECT_EQ(ddprun_checkpoint_begin(d_, 1), DDPRUN_EIO);
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, "a", "x", 1), DDPRUN_EIO);
  EXPECT_EQ(ddprun_checkpoint_finish(d_, 1), DDPRUN_EIO);
  Packet failed = keeper_.Receive();
  EXPECT_EQ(failed["TYPE"], "CheckpointFailed");
  EXPECT_NE(failed["REASON"].find("cannot make the folder"), std::string::npos);
}

TEST_F(ClientCheckpoint, IsInFlightUntilTheLauncherCommits) {
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 0);
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 1);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 1), 0);
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 1);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 0.01), DDPRUN_ETIMEOUT);
  auto waiting =
      std::async(std::launch::async, [this] { return ddprun_checkpoint_wait(d_, 1, 10); });
  Settle("CheckpointCommitted", 1);
  EXPECT_EQ(waiting.get(), 0);
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 0);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 0), 0);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 2, 0), DDPRUN_EINVAL);
}

TEST_F(ClientCheckpoint, TheNextOneWaitsForTheOneBefore) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 1), 0);
  auto next = std::async(std::launch::async, [this] { return ddprun_checkpoint_begin(d_, 2); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  Settle("CheckpointCommitted", 1);
  EXPECT_EQ(next.get(), 0);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 0), 0);
}

TEST_F(ClientCheckpoint, ADropEndsItAtAnyMoment) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  Settle("CheckpointDropped", 1);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 10), DDPRUN_EDROPPED);
  EXPECT_STREQ(ddprun_error(d_), "the checkpoint of step 1 was dropped: rank 1: disk full");
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 0);
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, "a", "x", 1), DDPRUN_EDROPPED);
  EXPECT_EQ(ddprun_checkpoint_finish(d_, 1), DDPRUN_EDROPPED);
  EXPECT_EQ(keeper_.Receive()["TYPE"], "CheckpointStarted");
  ASSERT_EQ(ddprun_ready(d_), 0);
  EXPECT_EQ(keeper_.Receive()["TYPE"], "Ready");
}

TEST_F(ClientCheckpoint, ADropThatComesBeforeThisRankIsThereIsNotForgotten) {
  Settle("CheckpointDropped", 5);
  keeper_.Send({{"TYPE", "EdgeRequest"}, {"ID", "1"}, {"PURPOSE", "checkpoint"}});
  EXPECT_EQ(keeper_.Receive()["TYPE"], "Edge");  // so the drop was read
  EXPECT_EQ(ddprun_checkpoint_begin(d_, 5), DDPRUN_EDROPPED);
  EXPECT_EQ(ddprun_checkpoint_in_flight(d_), 0);
  EXPECT_EQ(ddprun_checkpoint_begin(d_, 6), 0);
}

TEST_F(ClientCheckpoint, FailIsToldAndWaitsForTheDrop) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  ASSERT_EQ(ddprun_checkpoint_fail(d_, 1, "no\nmemory"), 0);
  EXPECT_EQ(ddprun_checkpoint_finish(d_, 1), DDPRUN_EINVAL);
  EXPECT_EQ(keeper_.Receive()["TYPE"], "CheckpointStarted");
  EXPECT_EQ(keeper_.Receive()["REASON"], "no\nmemory");
  Settle("CheckpointDropped", 1);
  EXPECT_EQ(ddprun_checkpoint_wait(d_, 1, 10), DDPRUN_EDROPPED);
  ASSERT_EQ(ddprun_checkpoint_skip(d_, 2, "busy"), 0);
  Packet skipped = keeper_.Receive();
  EXPECT_EQ(skipped["TYPE"], "CheckpointSkipped");
  EXPECT_EQ(skipped["STEP"], "2");
  EXPECT_EQ(skipped["REASON"], "busy");
}

TEST_F(ClientCheckpoint, NamesAndNumberOfFilesAreLimited) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 1), 0);
  for (const char* name : {"", ".", "..", "../a", "a/b", "a b", ".hidden", "manifest.json"}) {
    EXPECT_EQ(ddprun_checkpoint_write(d_, 1, name, "x", 1), DDPRUN_EINVAL) << name;
  }
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, std::string(129, 'n').c_str(), "x", 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_checkpoint_write(d_, 2, "a", "x", 1), DDPRUN_EINVAL);
  for (int i = 0; i < 64; ++i) {
    const std::string name = std::string(124, 'n') + "." + std::to_string(i);
    ASSERT_EQ(ddprun_checkpoint_write(d_, 1, name.c_str(), "x", 1), 0) << ddprun_error(d_);
    ASSERT_EQ(ddprun_checkpoint_write(d_, 1, name.c_str(), "x", 1),
              i < 63 ? DDPRUN_EINVAL : DDPRUN_ESIZE);
  }
  EXPECT_EQ(ddprun_checkpoint_write(d_, 1, "one-more", "x", 1), DDPRUN_ESIZE);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 1), 0);
  EXPECT_EQ(keeper_.ReceiveType("ShardsWritten")["COUNT"], "64");
}

TEST_F(ClientCheckpoint, StepsGrow) {
  ASSERT_EQ(ddprun_checkpoint_begin(d_, 2), 0);
  ASSERT_EQ(ddprun_checkpoint_finish(d_, 2), 0);
  Settle("CheckpointCommitted", 2);
  ASSERT_EQ(ddprun_checkpoint_wait(d_, 2, 10), 0);
  EXPECT_EQ(ddprun_checkpoint_begin(d_, 2), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_checkpoint_begin(d_, 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_checkpoint_begin(d_, -1), DDPRUN_EINVAL);
}

}  // namespace
}  // namespace ddprun
