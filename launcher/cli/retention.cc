#include "launcher/cli/retention.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/cli/folder_lock.h"
#include "launcher/cli/format.h"

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;

struct EndedRun {
  std::string name;
  timespec ended = {};
};

bool IsOwnFolder(const std::string& path, struct stat* info) {
  return lstat(path.c_str(), info) == 0 && S_ISDIR(info->st_mode) && info->st_uid == geteuid();
}

bool IsFile(const std::string& path, struct stat* info) {
  return lstat(path.c_str(), info) == 0 && S_ISREG(info->st_mode);
}

// The folders' identities that are never removed.
class Spared {
 public:
  void Add(const std::string& path) {
    struct stat info = {};
    if (stat(path.c_str(), &info) == 0) spared_.emplace_back(info.st_dev, info.st_ino);
  }
  bool Holds(const struct stat& info) const {
    return std::find(spared_.begin(), spared_.end(), std::pair(info.st_dev, info.st_ino)) !=
           spared_.end();
  }

 private:
  std::vector<std::pair<dev_t, ino_t>> spared_;
};

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator end, entry(folder, error);
  for (; !error && entry != end; entry.increment(error)) {
    struct stat info = {};
    if (lstat(entry->path().c_str(), &info) == 0 && info.st_nlink == 1) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

void Remove(const std::string& runs, const std::string& name, Removed* removed) {
  const std::string path = JoinPath(runs, name);
  const std::string doomed = JoinPath(runs, absl::StrCat(kRemovingPrefix, name));
  const FolderLock lock(path);  // against a --resume of that run at this moment
  if (!lock.held()) return;
  if (rename(path.c_str(), doomed.c_str()) != 0) {
    removed->problems.push_back(
        absl::StrCat("--keep-runs: cannot remove ", path, ": ", strerror(errno)));
    return;
  }
  const uint64_t bytes = BytesIn(doomed);
  std::error_code error;
  fs::remove_all(doomed, error);
  if (error) {
    removed->problems.push_back(
        absl::StrCat("--keep-runs: cannot remove all of ", doomed, ": ", error.message()));
    return;
  }
  ++removed->runs;
  removed->bytes += bytes;
}

bool IsLater(const EndedRun& a, const EndedRun& b) {
  return std::pair(a.ended.tv_sec, a.ended.tv_nsec) > std::pair(b.ended.tv_sec, b.ended.tv_nsec);
}

}  // namespace

Removed RemoveOldRuns(const std::string& run_dir, uint32_t keep) {
  Removed removed;
  const std::string runs = ParentPath(run_dir);
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(runs);
  if (!names.ok()) return removed;
  Spared spared;
  spared.Add(run_dir);
  spared.Add(JoinPath(runs, "latest"));
  std::vector<EndedRun> ended;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(runs, name);
    struct stat folder = {}, job = {}, result = {};
    if (!IsOwnFolder(path, &folder) || spared.Holds(folder)) continue;
    if (absl::StartsWith(name, kRemovingPrefix)) {
      std::error_code error;
      fs::remove_all(path, error);
    } else if (IsFile(JoinPath(path, "job.json"), &job) &&
               IsFile(JoinPath(path, "result.json"), &result) && FolderLock(path).held()) {
      ended.push_back({name, result.st_mtim});
    }
  }
  // The one of `latest` has a place among those that are kept.
  struct stat latest = {};
  const bool latest_ended = stat(JoinPath(runs, "latest/result.json").c_str(), &latest) == 0;
  const size_t places = latest_ended && keep > 0 ? keep - 1 : keep;
  std::sort(ended.begin(), ended.end(), IsLater);
  for (size_t i = places; i < ended.size(); ++i) Remove(runs, ended[i].name, &removed);
  return removed;
}

std::string RemovedLine(const Removed& removed, uint32_t keep) {
  if (removed.runs == 0) return "";
  return absl::StrCat("removed ", removed.runs, removed.runs == 1 ? " old run, " : " old runs, ",
                      SizeText(removed.bytes), " freed (--keep-runs ", keep, ")");
}

}  // namespace ddprun::cli
