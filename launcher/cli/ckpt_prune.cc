// `ddprun ckpt prune`.
#include <sys/stat.h>

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_folder.h"
#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/folder_lock.h"
#include "launcher/cli/format.h"

namespace ddprun::cli {
namespace {

// What the link `best` leads to.
bool IsLinked(const std::string& folder, uint64_t step) {
  struct stat best = {}, own = {};
  return stat(JoinPath(folder, "best").c_str(), &best) == 0 &&
         stat(JoinPath(folder, CheckpointName(step)).c_str(), &own) == 0 &&
         best.st_dev == own.st_dev && best.st_ino == own.st_ino;
}

uint64_t BytesOf(const std::vector<CkptEntry>& entries, uint64_t step) {
  for (const CkptEntry& entry : entries) {
    if (entry.name == CheckpointName(step)) return entry.bytes;
  }
  return 0;
}

// Whole: read and right where nothing newer is known to be, else there in full size.
std::vector<bool> WhichAreWhole(const std::string& folder, const std::vector<uint64_t>& steps) {
  std::vector<bool> whole;
  bool verified = false;
  for (uint64_t step : steps) {
    const std::string path = JoinPath(folder, CheckpointName(step));
    absl::StatusOr<ManifestContent> manifest = verified ? ReadManifest(PosixFileSystem(), path)
                                                        : VerifyCheckpoint(PosixFileSystem(), path);
    absl::Status status = manifest.status();
    if (status.ok()) status = CheckSizes(PosixFileSystem(), path, *manifest);
    whole.push_back(status.ok());
    verified = verified || status.ok();
    if (!status.ok()) {
      std::printf("%s is bad (%s): it stays, and does not count\n", path.c_str(),
                  std::string(status.message()).c_str());
    }
  }
  return whole;
}

}  // namespace

std::vector<uint64_t> StepsToPrune(const std::vector<uint64_t>& steps,
                                   const std::vector<bool>& whole, uint32_t keep) {
  std::vector<uint64_t> removed;
  uint32_t kept = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!whole[i]) continue;
    if (kept++ >= keep) removed.push_back(steps[i]);
  }
  return removed;
}

absl::Status CkptPrune(const Options& options) {
  const std::string word = options.ckpt.words.empty() ? "" : options.ckpt.words[0];
  const absl::StatusOr<CheckpointsFolder> found = FindCheckpoints(word);
  if (!found.ok()) return found.status();
  const std::string& folder = found->path;
  std::unique_ptr<FolderLock> lock;
  if (!found->run_dir.empty()) {
    lock = std::make_unique<FolderLock>(found->run_dir);
    if (lock->busy()) {
      return absl::FailedPreconditionError(
          absl::StrCat("ckpt prune: ", found->run_dir,
                       " is in use by a running ddprun, which removes old checkpoints itself "
                       "(checkpoint.keep); stop that job first"));
    }
  }
  const std::vector<CkptEntry> entries = ListCheckpoints(folder);
  const std::vector<uint64_t> steps = CommittedSteps(PosixFileSystem(), folder);
  std::vector<uint64_t> removed =
      StepsToPrune(steps, WhichAreWhole(folder, steps), *options.ckpt.keep);
  const uint64_t marked = BestStep(PosixFileSystem(), folder, steps);
  std::erase_if(removed, [&](uint64_t step) {
    const bool best = step == marked || IsLinked(folder, step);
    if (best) {
      std::printf("%s is the best one: it stays\n", JoinPath(folder, CheckpointName(step)).c_str());
    }
    return best;
  });
  uint64_t bytes = 0;
  for (uint64_t step : removed) {
    const std::string path = JoinPath(folder, CheckpointName(step));
    bytes += BytesOf(entries, step);
    if (!options.dry_run) {
      if (absl::Status status = RemoveCheckpoint(PosixFileSystem(), folder, step); !status.ok()) {
        return status;
      }
    }
    std::printf("%s %s\n", options.dry_run ? "would remove" : "removed", path.c_str());
  }
  std::printf("%zu %s, %s %s\n", removed.size(), removed.size() == 1 ? "checkpoint" : "checkpoints",
              SizeText(bytes).c_str(), options.dry_run ? "to be freed" : "freed");
  return absl::OkStatus();
}

}  // namespace ddprun::cli
