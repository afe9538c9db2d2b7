#include "common/checkpoint_folder.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace ddprun {
namespace {

constexpr char kStepPrefix[] = "step-";

absl::Status WrongSize(const ManifestFile& file, uint64_t bytes) {
  return absl::DataLossError(
      absl::StrCat(file.name, " holds ", bytes, " bytes instead of ", file.bytes));
}

}  // namespace

std::string CheckpointName(uint64_t step) {
  return absl::StrCat(kStepPrefix, step);
}

bool ParseCheckpointName(const std::string& name, uint64_t* step) {
  if (!absl::StartsWith(name, kStepPrefix)) return false;
  return absl::SimpleAtoi(name.substr(sizeof kStepPrefix - 1), step) &&
         CheckpointName(*step) == name;
}

std::vector<uint64_t> CommittedSteps(FileSystem& files, const std::string& folder) {
  std::vector<uint64_t> steps;
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    uint64_t step = 0;
    if (ParseCheckpointName(name, &step)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

uint64_t BestStep(FileSystem& files, const std::string& folder,
                  const std::vector<uint64_t>& steps) {
  const auto best = std::find_if(steps.begin(), steps.end(), [&](uint64_t step) {
    return files.FileBytes(JoinPath(JoinPath(folder, CheckpointName(step)), kBestMark)).ok();
  });
  return best == steps.end() ? 0 : *best;
}

absl::StatusOr<ManifestContent> ReadManifest(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::string> text = files.ReadFile(JoinPath(path, kManifestName));
  if (!text.ok()) return text.status();
  absl::StatusOr<ManifestContent> manifest = ParseManifest(*text);
  if (!manifest.ok()) return manifest.status();
  uint64_t step = 0;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (ParseCheckpointName(name, &step) && manifest->step != step) {
    return absl::DataLossError("manifest.json speaks of another step");
  }
  return manifest;
}

absl::Status CheckSizes(FileSystem& files, const std::string& path,
                        const ManifestContent& manifest) {
  for (const ManifestFile& file : manifest.files) {
    absl::StatusOr<uint64_t> bytes = files.FileBytes(JoinPath(path, file.name));
    if (!bytes.ok()) return bytes.status();
    if (*bytes != file.bytes) return WrongSize(file, *bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckManifestFile(FileSystem& files, const std::string& path,
                               const ManifestFile& file) {
  Xxh3Stream stream;
  uint64_t bytes = 0;
  absl::Status status = files.ReadPieces(JoinPath(path, file.name), [&](std::string_view piece) {
    stream.Update(piece.data(), piece.size());
    bytes += piece.size();
  });
  if (!status.ok()) return status;
  if (bytes != file.bytes) return WrongSize(file, bytes);
  const std::string hash = HashHex(stream.Finish());
  if (hash != file.xxh3_128) {
    return absl::DataLossError(
        absl::StrCat(file.name, " has checksum ", hash, " instead of ", file.xxh3_128));
  }
  return absl::OkStatus();
}

absl::StatusOr<ManifestContent> VerifyCheckpoint(FileSystem& files, const std::string& path) {
  absl::StatusOr<ManifestContent> manifest = ReadManifest(files, path);
  if (!manifest.ok()) return manifest.status();
  for (const ManifestFile& file : manifest->files) {
    absl::Status status = CheckManifestFile(files, path, file);
    if (!status.ok()) return status;
  }
  return manifest;
}

absl::Status RemoveCheckpoint(FileSystem& files, const std::string& folder, uint64_t step) {
  const std::string staging = JoinPath(folder, kCheckpointStaging);
  const std::string trash = JoinPath(staging, absl::StrCat("old-", step));
  absl::Status status = files.MakeDirectories(staging);
  if (status.ok()) status = files.Rename(JoinPath(folder, CheckpointName(step)), trash);
  if (status.ok()) status = files.RemoveAll(trash);
  return status;
}

}  // namespace ddprun
