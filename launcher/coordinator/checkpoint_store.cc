#include "launcher/coordinator/checkpoint_store.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "launcher/coordinator/manifest_read.h"

namespace ddprun::coordinator {
namespace {

constexpr char kManifest[] = "manifest.json";
constexpr char kStaging[] = ".staging";
constexpr char kStepPrefix[] = "step-";
constexpr char kBestLink[] = "best";

std::string StepName(uint64_t step) {
  return absl::StrCat(kStepPrefix, step);
}

// The step of a committed folder's name; false for any other name.
bool ParseStepName(const std::string& name, uint64_t* step) {
  if (!absl::StartsWith(name, kStepPrefix)) return false;
  return absl::SimpleAtoi(name.substr(sizeof kStepPrefix - 1), step) && StepName(*step) == name;
}

absl::Status CheckFile(FileSystem& files, const std::string& folder, const ManifestFile& file) {
  absl::StatusOr<std::string> data = files.ReadFile(JoinPath(folder, file.name));
  if (!data.ok()) return data.status();
  if (data->size() != file.bytes) {
    return absl::DataLossError(
        absl::StrCat(file.name, " holds ", data->size(), " bytes instead of ", file.bytes));
  }
  const std::string hash = HashHex(Xxh3(data->data(), data->size()));
  if (hash != file.xxh3_128) {
    return absl::DataLossError(
        absl::StrCat(file.name, " has checksum ", hash, " instead of ", file.xxh3_128));
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointStore::CheckpointStore(FileSystem& files, std::string run_dir, std::string job_id,
                                 uint32_t kept)
    : files_(files),
      folder_(JoinPath(run_dir, "checkpoints")),
      job_id_(std::move(job_id)),
      kept_(kept) {}

std::string CheckpointStore::StagingPath(uint64_t generation, uint64_t step) const {
  return JoinPath(JoinPath(folder_, kStaging), absl::StrCat("g", generation, "-step-", step));
}

absl::StatusOr<std::string> CheckpointStore::Commit(const CommitCheckpoint& commit) {
  const std::string staging = StagingPath(commit.generation, commit.step);
  std::string final_path = JoinPath(folder_, StepName(commit.step));
  absl::StatusOr<std::string> manifest = MakeManifest(files_, staging, job_id_, commit);
  absl::Status status = manifest.status();
  if (status.ok()) status = ReplaceFile(files_, JoinPath(staging, kManifest), *manifest);
  // rename(2) refuses a target folder that is not empty, so nothing is ever overwritten.
  if (status.ok()) status = files_.Rename(staging, final_path);
  if (!status.ok()) {
    files_.RemoveAll(staging).IgnoreError();
    return status;
  }
  status = files_.SyncDirectory(folder_);
  if (!status.ok()) {
    // Whether the rename is durable is not known, so it must not count.
    files_.Rename(final_path, staging).IgnoreError();
    files_.RemoveAll(staging).IgnoreError();
    return status;
  }
  PointToBest();
  RemoveOld();
  return final_path;
}

std::vector<uint64_t> CheckpointStore::Steps() const {
  std::vector<uint64_t> steps;
  absl::StatusOr<std::vector<std::string>> names = files_.List(folder_);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    uint64_t step = 0;
    if (ParseStepName(name, &step)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

uint64_t CheckpointStore::BestStep(const std::vector<uint64_t>& steps) const {
  for (uint64_t step : steps) {
    if (files_.FileBytes(JoinPath(JoinPath(folder_, StepName(step)), kBestMark)).ok()) return step;
  }
  return 0;
}

void CheckpointStore::PointToBest() {
  const uint64_t best = BestStep(Steps());
  // For people only; a file system without links loses nothing.
  files_.PointLink(JoinPath(folder_, kBestLink), best == 0 ? "" : StepName(best)).IgnoreError();
}

void CheckpointStore::RemoveOld() {
  if (kept_ == 0) return;
  const std::vector<uint64_t> steps = Steps();
  const uint64_t best = BestStep(steps);
  for (size_t i = kept_; i < steps.size(); ++i) {
    if (steps[i] == best) continue;
    // Out of sight first: a half-removed checkpoint must never look like a whole one.
    const std::string trash = JoinPath(JoinPath(folder_, kStaging), absl::StrCat("old-", steps[i]));
    if (files_.Rename(JoinPath(folder_, StepName(steps[i])), trash).ok()) {
      files_.RemoveAll(trash).IgnoreError();
    }
  }
}

absl::Status CheckpointStore::Verify(const std::string& path) const {
  absl::StatusOr<std::string> text = files_.ReadFile(JoinPath(path, kManifest));
  if (!text.ok()) return text.status();
  const absl::StatusOr<ManifestContent> manifest = ParseManifest(*text);
  if (!manifest.ok()) return manifest.status();
  if (manifest->job_id != job_id_) {
    return absl::DataLossError(
        absl::StrCat("it belongs to job ", manifest->job_id, ", not ", job_id_));
  }
  uint64_t step = 0;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (ParseStepName(name, &step) && manifest->step != step) {
    return absl::DataLossError("manifest.json speaks of another step");
  }
  for (const ManifestFile& file : manifest->files) {
    absl::Status status = CheckFile(files_, path, file);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

ResumeChosen CheckpointStore::ChooseResume(uint64_t generation) {
  ResumeChosen chosen;
  chosen.generation = generation;
  // Every earlier generation is over, so whatever lies in staging is dead.
  files_.RemoveAll(JoinPath(folder_, kStaging)).IgnoreError();
  for (uint64_t step : Steps()) {
    const std::string path = JoinPath(folder_, StepName(step));
    absl::Status status = Verify(path);
    if (status.ok()) {
      chosen.step = step;
      chosen.path = path;
      break;
    }
    std::string bad = absl::StrCat(path, ".bad-g", generation);
    if (!files_.Rename(path, bad).ok()) bad = path;
    chosen.rejected.push_back({step, bad, std::string(status.message())});
  }
  PointToBest();
  return chosen;
}

void CheckpointStore::DropStaging(uint64_t generation, uint64_t step) {
  files_.RemoveAll(StagingPath(generation, step)).IgnoreError();
}

}  // namespace ddprun::coordinator
