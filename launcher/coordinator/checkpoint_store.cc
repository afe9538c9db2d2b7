#include "launcher/coordinator/checkpoint_store.h"

#include "absl/strings/str_cat.h"
#include "common/checkpoint_folder.h"
#include "common/checkpoint_manifest.h"

namespace ddprun::coordinator {
namespace {

constexpr char kBestLink[] = "best";

}  // namespace

CheckpointStore::CheckpointStore(FileSystem& files, std::string run_dir, std::string job_id,
                                 uint32_t kept)
    : files_(files),
      folder_(JoinPath(run_dir, "checkpoints")),
      job_id_(std::move(job_id)),
      kept_(kept) {}

std::string CheckpointStore::StagingPath(uint64_t generation, uint64_t step) const {
  return JoinPath(JoinPath(folder_, kCheckpointStaging),
                  absl::StrCat("g", generation, "-step-", step));
}

absl::StatusOr<std::string> CheckpointStore::Commit(const CommitCheckpoint& commit) {
  const std::string staging = StagingPath(commit.generation, commit.step);
  std::string final_path = JoinPath(folder_, CheckpointName(commit.step));
  absl::StatusOr<std::string> manifest = MakeManifest(files_, staging, job_id_, commit);
  absl::Status status = manifest.status();
  if (status.ok()) status = ReplaceFile(files_, JoinPath(staging, kManifestName), *manifest);
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

void CheckpointStore::PointToBest() {
  const uint64_t best = BestStep(files_, folder_, CommittedSteps(files_, folder_));
  // For people only; a file system without links loses nothing.
  files_.PointLink(JoinPath(folder_, kBestLink), best == 0 ? "" : CheckpointName(best))
      .IgnoreError();
}

void CheckpointStore::RemoveOld() {
  if (kept_ == 0) return;
  const std::vector<uint64_t> steps = CommittedSteps(files_, folder_);
  const uint64_t best = BestStep(files_, folder_, steps);
  for (size_t i = kept_; i < steps.size(); ++i) {
    if (steps[i] != best) RemoveCheckpoint(files_, folder_, steps[i]).IgnoreError();
  }
}

absl::Status CheckpointStore::Verify(const std::string& path) const {
  const absl::StatusOr<ManifestContent> manifest = VerifyCheckpoint(files_, path);
  if (!manifest.ok()) return manifest.status();
  if (manifest->job_id != job_id_) {
    return absl::DataLossError(
        absl::StrCat("it belongs to job ", manifest->job_id, ", not ", job_id_));
  }
  return absl::OkStatus();
}

ResumeChosen CheckpointStore::ChooseResume(uint64_t generation) {
  ResumeChosen chosen;
  chosen.generation = generation;
  // Every earlier generation is over, so whatever lies in staging is dead.
  files_.RemoveAll(JoinPath(folder_, kCheckpointStaging)).IgnoreError();
  for (uint64_t step : CommittedSteps(files_, folder_)) {
    const std::string path = JoinPath(folder_, CheckpointName(step));
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
