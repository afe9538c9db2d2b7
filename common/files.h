// Durable files: what a crash or a loss of power may and may not undo.
//
// FileSystem is the seam through which everything that must be durable goes, so that tests can
// record, fail or cut off its operations. Threads: PosixFileSystem is stateless; any thread. All
// paths are absolute or relative to the working directory. Errors name the operation, the path and
// the system's reason. A failed fsync is final for its file: the pages are marked clean, and a
// second fsync would lie (facts: ATC'20 "Can applications recover from fsync failures?").
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates `path` (which must not exist), writes everything, fsyncs, closes. On error the file is
  // removed.
  virtual absl::Status WriteNewFile(const std::string& path, std::string_view data) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Creates the folder and its parents; an existing folder is fine.
  virtual absl::Status MakeDirectories(const std::string& path) = 0;
  // Removes a file or a whole folder; a missing one is fine.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) = 0;
  // The file's bytes in order, in pieces: for files that need not fit into memory.
  virtual absl::Status ReadPieces(const std::string& path,
                                  const std::function<void(std::string_view)>& piece) = 0;
  virtual absl::StatusOr<uint64_t> FileBytes(const std::string& path) = 0;
  // A symbolic link `path` to `target`, which may be relative to it; one that is there is replaced
  // so that a reader sees the old or the new one; anything that is no link is refused. An empty
  // target: no link is left. Not synced: only for what can be made again.
  virtual absl::Status PointLink(const std::string& path, const std::string& target) = 0;
  // Names in a folder, sorted; a missing folder is empty.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
};

FileSystem& PosixFileSystem();

// Replaces `path` so that a reader and a crash see the old or the new content, whole: temporary
// name, fsync, rename, fsync of the folder.
absl::Status ReplaceFile(FileSystem& files, const std::string& path, std::string_view data);

std::string JoinPath(std::string_view folder, std::string_view name);
// The folder part; "." where there is none.
std::string ParentPath(const std::string& path);

}  // namespace ddprun
