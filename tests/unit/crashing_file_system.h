// A file system that writes for real and keeps a list of what was done, so that a test can cut the
// list after any operation and build the folder that a loss of power would leave behind at that
// point.
#pragma once

#include <string>
#include <vector>

#include "common/files.h"

namespace ddprun {

struct FileOperation {
  enum Kind { kWriteUnsynced, kSyncFile, kRename, kSyncDirectory, kMakeDirectories, kRemoveAll };
  Kind kind;
  std::string path;  // relative to the root
  std::string to;    // of a rename
  std::string data;  // of a write
};

// What an unsynced operation may look like after the loss of power.
enum class CrashModel {
  kAllReached,   // everything that was done is there
  kDataLost,     // files that were not fsynced are there with no content
  kRenamesLost,  // renames whose folder was not fsynced did not happen
};

class RecordingFileSystem final : public FileSystem {
 public:
  explicit RecordingFileSystem(std::string root) : root_(std::move(root)) {}

  absl::Status WriteNewFile(const std::string& path, std::string_view data) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status RemoveAll(const std::string& path) override;
  absl::Status PointLink(const std::string& path, const std::string& target) override {
    return real_.PointLink(path, target);
  }
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    return real_.ReadFile(path);
  }
  absl::Status ReadPieces(const std::string& path,
                          const std::function<void(std::string_view)>& piece) override {
    return real_.ReadPieces(path, piece);
  }
  absl::StatusOr<uint64_t> FileBytes(const std::string& path) override {
    return real_.FileBytes(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return real_.List(path);
  }

  // The n-th call (from 1) of a kind fails with this error and, for a write, leaves nothing. 0:
  // none.
  void FailAt(FileOperation::Kind kind, int n, int error);

  const std::vector<FileOperation>& operations() const { return operations_; }

 private:
  bool Fails(FileOperation::Kind kind);
  std::string Relative(const std::string& path) const;
  FileSystem& real_ = PosixFileSystem();
  std::string root_;
  std::vector<FileOperation> operations_;
  FileOperation::Kind fail_kind_ = FileOperation::kSyncDirectory;
  int fail_at_ = 0;
  int fail_error_ = 0;
  int seen_ = 0;
};

// Performs the first `count` operations below `root` as the model says.
void Replay(const std::vector<FileOperation>& operations, size_t count, CrashModel model,
            const std::string& root);

// A fresh folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ddprun
