// The commit of a checkpoint and the choice of the one to resume from.
#include "launcher/coordinator/checkpoint_store.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "tests/unit/crashing_file_system.h"

namespace ddprun::coordinator {
namespace {

namespace fs = std::filesystem;

// Writes what two ranks would for this step, in the order in which libddprun does (its own test
// pins that order).
CommitCheckpoint Stage(FileSystem& files, const std::string& run_dir, uint64_t generation,
                       uint64_t step) {
  CommitCheckpoint commit{generation, step, 2, {}};
  const std::string staging =
      absl::StrCat(run_dir, "/checkpoints/.staging/g", generation, "-step-", step);
  EXPECT_TRUE(files.MakeDirectories(staging).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = absl::StrCat("part-", rank, ".bin");
    const std::string data = absl::StrCat("weights of rank ", rank, " at step ", step);
    const std::string path = absl::StrCat(staging, "/", name);
    EXPECT_TRUE(files.WriteNewFile(absl::StrCat(path, ".tmp.", rank), data).ok());
    EXPECT_TRUE(files.Rename(absl::StrCat(path, ".tmp.", rank), path).ok());
    EXPECT_TRUE(files.SyncDirectory(staging).ok());
    v1::ShardFile file;
    file.set_name(name);
    file.set_bytes(data.size());
    file.set_xxh3_128(HashHex(Xxh3(data.data(), data.size())));
    commit.files.push_back(file);
  }
  return commit;
}

void Commit(FileSystem& files, const std::string& run_dir, uint64_t generation, uint64_t step,
            uint32_t kept = 0) {
  CheckpointStore store(files, run_dir, "job", kept);
  absl::StatusOr<std::string> path = store.Commit(Stage(files, run_dir, generation, step));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, absl::StrCat(run_dir, "/checkpoints/step-", step));
}

ResumeChosen Choose(const std::string& run_dir, uint64_t generation = 9) {
  return CheckpointStore(PosixFileSystem(), run_dir, "job", 0).ChooseResume(generation);
}

TEST(CheckpointStore, NothingCommittedMeansFromScratch) {
  TemporaryFolder folder;
  ResumeChosen chosen = Choose(folder.path());
  EXPECT_EQ(chosen.step, 0u);
  EXPECT_EQ(chosen.path, "");
}

TEST(CheckpointStore, TheNewestStepIsChosenByNumber) {
  TemporaryFolder folder;
  for (uint64_t step : {90, 100, 20}) Commit(PosixFileSystem(), folder.path(), 1, step);
  EXPECT_EQ(Choose(folder.path()).step, 100u);
}

// C12, C1, TR28: every prefix of the file operations of a save, under every model of what a loss of
// power keeps, leaves the old checkpoint or the new one, whole.
TEST(CheckpointStore, EveryCutThroughACommitLeavesTheOldOrTheNewCheckpoint) {
  TemporaryFolder recorded;
  RecordingFileSystem files(recorded.path());
  Commit(files, recorded.path(), 1, 100);
  const size_t first = files.operations().size();
  Commit(files, recorded.path(), 1, 200);
  const std::vector<FileOperation>& operations = files.operations();
  ASSERT_GT(operations.size(), first + 8);
  bool old_seen = false, new_seen = false;
  for (size_t count = first; count <= operations.size(); ++count) {
    for (CrashModel model :
         {CrashModel::kAllReached, CrashModel::kDataLost, CrashModel::kRenamesLost}) {
      TemporaryFolder after;
      Replay(operations, count, model, after.path());
      ResumeChosen chosen = Choose(after.path());
      ASSERT_TRUE(chosen.step == 100 || chosen.step == 200)
          << "after " << count << " operations, model " << static_cast<int>(model) << ": step "
          << chosen.step;
      EXPECT_TRUE(chosen.rejected.empty()) << chosen.rejected[0].reason;
      if (count == operations.size()) {
        EXPECT_EQ(chosen.step, 200u) << "a finished commit is durable";
      }
      old_seen = old_seen || chosen.step == 100;
      new_seen = new_seen || chosen.step == 200;
    }
  }
  EXPECT_TRUE(old_seen && new_seen);
}

// TR28: an fsync error is final: nothing is committed, nothing half-written is left, the old one
// stays.
TEST(CheckpointStore, AnyFailedOperationDropsTheNewCheckpointAndKeepsTheOld) {
  for (auto kind : {FileOperation::kWriteUnsynced, FileOperation::kSyncFile, FileOperation::kRename,
                    FileOperation::kSyncDirectory}) {
    for (int n = 1; n <= 2; ++n) {
      TemporaryFolder folder;
      RecordingFileSystem files(folder.path());
      Commit(files, folder.path(), 1, 100);
      CommitCheckpoint commit = Stage(files, folder.path(), 1, 200);
      // ReplaceFile of the manifest is one write and one sync; so n = 2 is out of reach for these.
      if (n == 2 && (kind == FileOperation::kWriteUnsynced || kind == FileOperation::kSyncFile))
        continue;
      files.FailAt(kind, n, n == 1 ? EIO : ENOSPC);
      CheckpointStore store(files, folder.path(), "job", 0);
      absl::StatusOr<std::string> path = store.Commit(commit);
      ASSERT_FALSE(path.ok()) << "kind " << kind << " n " << n;
      EXPECT_NE(path.status().message().find(folder.path()), std::string::npos)
          << "the error names the path";
      EXPECT_EQ(Choose(folder.path()).step, 100u) << "kind " << kind << " n " << n;
      EXPECT_FALSE(fs::exists(folder.path() + "/checkpoints/step-200"));
    }
  }
}

// C2, C6: a damaged newest one is set aside with its reason, and the one before is used.
TEST(CheckpointStore, ADamagedCheckpointIsRejectedAndTheOneBeforeIsUsed) {
  struct Damage {
    const char* what;
    std::function<void(const std::string&)> apply;
  };
  const Damage damages[] = {
      {"flipped byte",
       [](const std::string& p) {
         std::fstream f(p + "/part-1.bin", std::ios::in | std::ios::out | std::ios::binary);
         f.seekp(3);
         f.put('X');
       }},
      {"truncated file", [](const std::string& p) { fs::resize_file(p + "/part-0.bin", 5); }},
      {"missing file", [](const std::string& p) { fs::remove(p + "/part-0.bin"); }},
      {"no manifest", [](const std::string& p) { fs::remove(p + "/manifest.json"); }},
      {"empty manifest", [](const std::string& p) { fs::resize_file(p + "/manifest.json", 0); }},
      {"half a manifest", [](const std::string& p) { fs::resize_file(p + "/manifest.json", 60); }},
      {"manifest of another step",
       [](const std::string& p) {
         std::string other = p;
         other.replace(other.rfind("200"), 3, "100");
         fs::copy_file(other + "/manifest.json", p + "/manifest.json",
                       fs::copy_options::overwrite_existing);
       }},
  };
  for (const Damage& damage : damages) {
    TemporaryFolder folder;
    Commit(PosixFileSystem(), folder.path(), 1, 100);
    Commit(PosixFileSystem(), folder.path(), 1, 200);
    damage.apply(folder.path() + "/checkpoints/step-200");
    ResumeChosen chosen = Choose(folder.path(), 3);
    EXPECT_EQ(chosen.step, 100u) << damage.what;
    ASSERT_EQ(chosen.rejected.size(), 1u) << damage.what;
    EXPECT_EQ(chosen.rejected[0].step, 200u);
    EXPECT_FALSE(chosen.rejected[0].reason.empty());
    EXPECT_TRUE(fs::exists(folder.path() + "/checkpoints/step-200.bad-g3")) << damage.what;
    EXPECT_EQ(Choose(folder.path(), 4).rejected.size(), 0u) << "it is set aside for good";
  }
}

TEST(CheckpointStore, AShardThatIsNotAsReportedIsNotCommitted) {
  TemporaryFolder folder;
  CommitCheckpoint commit = Stage(PosixFileSystem(), folder.path(), 1, 100);
  commit.files[0].set_bytes(commit.files[0].bytes() + 1);
  CheckpointStore store(PosixFileSystem(), folder.path(), "job", 0);
  EXPECT_FALSE(store.Commit(commit).ok());
  EXPECT_EQ(Choose(folder.path()).step, 0u);
}

TEST(CheckpointStore, ACheckpointOfAnotherJobIsNotUsed) {
  TemporaryFolder folder;
  Commit(PosixFileSystem(), folder.path(), 1, 100);
  CheckpointStore other(PosixFileSystem(), folder.path(), "other", 0);
  ResumeChosen chosen = other.ChooseResume(2);
  EXPECT_EQ(chosen.step, 0u);
  ASSERT_EQ(chosen.rejected.size(), 1u);
}

TEST(CheckpointStore, TheNewestAreKeptAndOlderOnesRemovedOnlyAfterTheCommit) {
  TemporaryFolder folder;
  for (uint64_t step = 10; step <= 50; step += 10)
    Commit(PosixFileSystem(), folder.path(), 1, step, 2);
  EXPECT_FALSE(fs::exists(folder.path() + "/checkpoints/step-30"));
  EXPECT_TRUE(fs::exists(folder.path() + "/checkpoints/step-40"));
  EXPECT_TRUE(fs::exists(folder.path() + "/checkpoints/step-50"));
}

// MA14: the newest checkpoint with the mark is the best one; it survives `kept`, a restart, and the
// loss of the link, which is only for people.
TEST(CheckpointStore, TheBestOneIsKeptAndNamedByALink) {
  TemporaryFolder folder;
  const std::string checkpoints = folder.path() + "/checkpoints";
  for (uint64_t step : {10, 20, 30, 40, 50}) {
    CommitCheckpoint commit = Stage(PosixFileSystem(), folder.path(), 1, step);
    if (step == 10 || step == 20) {
      v1::ShardFile mark;
      mark.set_name(kBestMark);
      mark.set_bytes(2);
      mark.set_xxh3_128(HashHex(Xxh3("{}", 2)));
      commit.files.push_back(mark);
      std::ofstream(absl::StrCat(checkpoints, "/.staging/g1-step-", step, "/", kBestMark)) << "{}";
    }
    CheckpointStore store(PosixFileSystem(), folder.path(), "job", 2);
    ASSERT_TRUE(store.Commit(commit).ok());
    if (step >= 20) {
      EXPECT_EQ(fs::read_symlink(checkpoints + "/best"), "step-20");
    }
  }
  for (uint64_t step : {10, 30})
    EXPECT_FALSE(fs::exists(absl::StrCat(checkpoints, "/step-", step)));
  for (uint64_t step : {20, 40, 50}) {
    EXPECT_TRUE(fs::exists(absl::StrCat(checkpoints, "/step-", step)));
  }
  // A crash between the commit and the link, and a best one that is damaged.
  fs::remove(checkpoints + "/best");
  EXPECT_EQ(Choose(folder.path()).step, 50u);
  EXPECT_EQ(fs::read_symlink(checkpoints + "/best"), "step-20");
  fs::remove_all(checkpoints + "/step-20");
  EXPECT_EQ(Choose(folder.path()).step, 50u);
  EXPECT_FALSE(fs::is_symlink(checkpoints + "/best")) << "nothing is called best that is not there";
  fs::create_directory(checkpoints + "/best");
  EXPECT_EQ(Choose(folder.path()).step, 50u);
  EXPECT_TRUE(fs::is_directory(checkpoints + "/best")) << "what a program has put there is its own";
}

TEST(CheckpointStore, NothingIsOverwritten) {
  TemporaryFolder folder;
  Commit(PosixFileSystem(), folder.path(), 1, 100);
  CheckpointStore store(PosixFileSystem(), folder.path(), "job", 0);
  EXPECT_FALSE(store.Commit(Stage(PosixFileSystem(), folder.path(), 2, 100)).ok());
  EXPECT_EQ(Choose(folder.path()).step, 100u);
}

TEST(CheckpointStore, StagingOfEarlierGenerationsIsRemoved) {
  TemporaryFolder folder;
  Stage(PosixFileSystem(), folder.path(), 1, 300);
  EXPECT_EQ(Choose(folder.path(), 2).step, 0u);
  EXPECT_FALSE(fs::exists(folder.path() + "/checkpoints/.staging"));
}

}  // namespace
}  // namespace ddprun::coordinator
