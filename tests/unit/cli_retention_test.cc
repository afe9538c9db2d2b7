// --keep-runs: which run folders are removed, and above all which are not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "launcher/cli/retention.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RetentionTest : public ::testing::Test {
 protected:
  RetentionTest() { fs::create_directories(Path("runs")); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }
  // A run that ended at that time.
  void AddRun(const std::string& name, int ended_seconds) {
    const std::string run = absl::StrCat("runs/", name);
    fs::create_directories(Path(run) + "/logs/g1");
    folder_.Write(run + "/job.json", "{\"job_id\":\"x\"}");
    folder_.Write(run + "/logs/g1/rank0.log", std::string(100'000, 'x'));
    folder_.Write(run + "/.lock", "");
    folder_.Write(run + "/result.json", "{}");
    const timespec times[2] = {{ended_seconds, 0}, {ended_seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (Path(run) + "/result.json").c_str(), times, 0), 0);
  }
  std::vector<std::string> Runs() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Path("runs"))) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Folder folder_;
};

TEST_F(RetentionTest, TheNewestEndedRunsStay) {
  for (int i = 1; i <= 5; ++i) AddRun(absl::StrCat("r", i), 1000 * (i == 1 ? 9 : i));
  fs::create_directories(Path("runs/new"));
  const Removed removed = RemoveOldRuns(Path("runs/new"), 2);
  EXPECT_EQ(removed.runs, 3u);
  EXPECT_GE(removed.bytes, 300'000u);
  EXPECT_THAT(removed.problems, ElementsAre());
  EXPECT_THAT(Runs(), ElementsAre("new", "r1", "r5"));
  EXPECT_THAT(RemovedLine(removed, 2), StartsWith("removed 3 old runs, "));
  EXPECT_EQ(RemovedLine(RemoveOldRuns(Path("runs/new"), 2), 2), "");
}

TEST_F(RetentionTest, WhatIsNoEndedRunIsNotTouched) {
  AddRun("unfinished", 1);
  fs::remove(Path("runs/unfinished/result.json"));
  AddRun("no-job", 2);
  fs::remove(Path("runs/no-job/job.json"));
  AddRun("no-lock", 3);
  fs::remove(Path("runs/no-lock/.lock"));
  AddRun("busy", 4);
  const int lock = open((Path("runs/busy") + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  AddRun("resumed", 5);  // is the new run
  fs::create_directories(Path("elsewhere"));
  AddRun("../elsewhere/run", 6);
  fs::create_directory_symlink(Path("elsewhere/run"), Path("runs/link"));
  folder_.Write("runs/file", "");
  AddRun("old", 7);
  AddRun("kept", 8);
  const Removed removed = RemoveOldRuns(Path("runs/resumed"), 1);
  close(lock);
  EXPECT_EQ(removed.runs, 1u);
  EXPECT_THAT(Runs(), ElementsAre("busy", "file", "kept", "link", "no-job", "no-lock", "resumed",
                                  "unfinished"));
  EXPECT_TRUE(fs::exists(Path("elsewhere/run/job.json")));
}

TEST_F(RetentionTest, LatestStaysAndCounts) {
  for (int i = 1; i <= 4; ++i) AddRun(absl::StrCat("r", i), i);
  fs::create_directory_symlink("r2", Path("runs/latest"));
  EXPECT_EQ(RemoveOldRuns(Path("runs/new"), 2).runs, 2u);
  EXPECT_THAT(Runs(), ElementsAre("latest", "r2", "r4"));
}

TEST_F(RetentionTest, WhatLinksPointToStays) {
  AddRun("old", 1);
  AddRun("kept", 2);
  folder_.Write("precious", "data");
  fs::create_symlink(Path("precious"), Path("runs/old/state"));
  fs::create_directories(Path("folder"));
  folder_.Write("folder/inside", "data");
  fs::create_directory_symlink(Path("folder"), Path("runs/old/checkpoints"));
  EXPECT_EQ(RemoveOldRuns(Path("runs/new"), 1).runs, 1u);
  EXPECT_TRUE(fs::exists(Path("precious")));
  EXPECT_TRUE(fs::exists(Path("folder/inside")));
}

// Crash safety: a run is whole, or has a name that nobody takes for a run.
TEST_F(RetentionTest, WhatACrashLeftIsRemovedTheNextTime) {
  AddRun(absl::StrCat(kRemovingPrefix, "r1"), 1);
  fs::remove(Path(absl::StrCat("runs/", kRemovingPrefix, "r1/job.json")));
  AddRun("r2", 2);
  EXPECT_EQ(RemoveOldRuns(Path("runs/new"), 5).runs, 0u);
  EXPECT_THAT(Runs(), ElementsAre("r2"));
}

}  // namespace
}  // namespace ddprun::cli
