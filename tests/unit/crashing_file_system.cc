#include "tests/unit/crashing_file_system.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ddprun {
namespace fs = std::filesystem;

std::string RecordingFileSystem::Relative(const std::string& path) const {
  return fs::path(path).lexically_relative(root_).string();
}

void RecordingFileSystem::FailAt(FileOperation::Kind kind, int n, int error) {
  fail_kind_ = kind;
  fail_at_ = n;
  fail_error_ = error;
  seen_ = 0;
}

bool RecordingFileSystem::Fails(FileOperation::Kind kind) {
  return fail_at_ != 0 && kind == fail_kind_ && ++seen_ == fail_at_;
}

absl::Status RecordingFileSystem::WriteNewFile(const std::string& path, std::string_view data) {
  if (Fails(FileOperation::kWriteUnsynced))
    return absl::ErrnoToStatus(fail_error_, "write " + path);
  if (Fails(FileOperation::kSyncFile)) return absl::ErrnoToStatus(fail_error_, "fsync " + path);
  absl::Status status = real_.WriteNewFile(path, data);
  operations_.push_back({FileOperation::kWriteUnsynced, Relative(path), "", std::string(data)});
  operations_.push_back({FileOperation::kSyncFile, Relative(path), "", ""});
  return status;
}

absl::Status RecordingFileSystem::Rename(const std::string& from, const std::string& to) {
  if (Fails(FileOperation::kRename)) return absl::ErrnoToStatus(fail_error_, "rename " + from);
  absl::Status status = real_.Rename(from, to);
  if (status.ok())
    operations_.push_back({FileOperation::kRename, Relative(from), Relative(to), ""});
  return status;
}

absl::Status RecordingFileSystem::SyncDirectory(const std::string& path) {
  if (Fails(FileOperation::kSyncDirectory))
    return absl::ErrnoToStatus(fail_error_, "fsync " + path);
  operations_.push_back({FileOperation::kSyncDirectory, Relative(path), "", ""});
  return real_.SyncDirectory(path);
}

absl::Status RecordingFileSystem::MakeDirectories(const std::string& path) {
  operations_.push_back({FileOperation::kMakeDirectories, Relative(path), "", ""});
  return real_.MakeDirectories(path);
}

absl::Status RecordingFileSystem::RemoveAll(const std::string& path) {
  operations_.push_back({FileOperation::kRemoveAll, Relative(path), "", ""});
  return real_.RemoveAll(path);
}

namespace {

bool SyncedLater(const std::vector<FileOperation>& operations, size_t from, size_t count,
                 FileOperation::Kind kind, const std::string& path) {
  for (size_t i = from + 1; i < count; ++i) {
    if (operations[i].kind == kind && operations[i].path == path) return true;
  }
  return false;
}

}  // namespace

void Replay(const std::vector<FileOperation>& operations, size_t count, CrashModel model,
            const std::string& root) {
  for (size_t i = 0; i < count; ++i) {
    const FileOperation& op = operations[i];
    const fs::path path = fs::path(root) / op.path;
    std::error_code ignored;
    switch (op.kind) {
      case FileOperation::kWriteUnsynced: {
        const bool lost = model == CrashModel::kDataLost &&
                          !SyncedLater(operations, i, count, FileOperation::kSyncFile, op.path);
        std::ofstream out(path, std::ios::binary | std::ios::trunc);
        if (!lost) out << op.data;
        break;
      }
      case FileOperation::kRename: {
        const std::string folder = fs::path(op.to).parent_path().string();
        const bool lost = model == CrashModel::kRenamesLost &&
                          !SyncedLater(operations, i, count, FileOperation::kSyncDirectory,
                                       folder.empty() ? "." : folder);
        if (!lost) fs::rename(path, fs::path(root) / op.to, ignored);
        break;
      }
      case FileOperation::kMakeDirectories:
        fs::create_directories(path, ignored);
        break;
      case FileOperation::kRemoveAll:
        fs::remove_all(path, ignored);
        break;
      case FileOperation::kSyncFile:
      case FileOperation::kSyncDirectory:
        break;
    }
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "ddprun-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace ddprun
