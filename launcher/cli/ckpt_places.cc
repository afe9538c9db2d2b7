#include "launcher/cli/ckpt_places.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/checkpoint_folder.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

constexpr char kBest[] = "best";
constexpr char kIndexEnding[] = ".safetensors.index.json";
constexpr size_t kStepsNamedMax = 8;
constexpr uint64_t kShardsMax = 100'000;

bool Exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string StepsText(const std::string& folder) {
  std::vector<uint64_t> steps = CommittedSteps(PosixFileSystem(), folder);
  if (steps.empty()) {
    std::error_code error;
    const std::filesystem::path run = std::filesystem::read_symlink(ParentPath(folder), error);
    return absl::StrCat("there are no checkpoints in ", folder,
                        error ? ""
                              : absl::StrCat(", which is now ", run.filename().string(),
                                             "; name the run that has them"));
  }
  const bool more = steps.size() > kStepsNamedMax;
  if (more) steps.resize(kStepsNamedMax);
  std::reverse(steps.begin(), steps.end());
  return absl::StrCat("in ", folder, " there are ", more ? "… " : "", absl::StrJoin(steps, ", "));
}

// The newest checkpoint of a folder.
absl::StatusOr<CkptPlace> Newest(const std::string& folder) {
  const std::vector<uint64_t> steps = CommittedSteps(PosixFileSystem(), folder);
  if (steps.empty()) return absl::InvalidArgumentError(StepsText(folder));
  return CkptPlace{.is_checkpoint = true,
                   .path = JoinPath(folder, CheckpointName(steps[0])),
                   .newest_of_run = true};
}

absl::StatusOr<CkptPlace> NamedCheckpoint(const std::string& name, const std::string& word,
                                          const std::string& run_dir) {
  const absl::StatusOr<CheckpointsFolder> folder = FindCheckpoints(run_dir);
  if (!folder.ok()) return folder.status();
  const std::string path = JoinPath(folder->path, name);
  if (IsFolder(path)) return CkptPlace{true, path};
  return absl::InvalidArgumentError(absl::StrCat(
      word, ": no such checkpoint", name == kBest ? " (kept with [checkpoint] best = true)" : "",
      "; ", StepsText(folder->path)));
}

absl::StatusOr<std::vector<std::string>> FilesOfIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = PosixFileSystem().ReadFile(path);
  if (!text.ok()) return text.status();
  const nlohmann::json index = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": is no index: it has no weight_map"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const auto* name = file.get_ptr<const std::string*>();
    if (name == nullptr || !IsShardName(*name)) {
      return absl::DataLossError(
          absl::StrCat(path, ": says of \"", tensor, "\" no file beside itself"));
    }
    names.insert(*name);
  }
  std::vector<std::string> files;
  for (const std::string& name : names) {
    files.push_back(JoinPath(ParentPath(path), name));
    if (!Exists(files.back())) {
      return absl::DataLossError(absl::StrCat(path, ": the file ", name, " is missing beside it"));
    }
  }
  return files;
}

// i and n of `<stem>-<i>-of-<n>.safetensors`.
bool ParseShard(absl::string_view name, const std::string& stem, uint64_t* i, uint64_t* n) {
  if (!absl::ConsumePrefix(&name, stem + "-") || !absl::ConsumeSuffix(&name, ".safetensors")) {
    return false;
  }
  const std::vector<absl::string_view> numbers = absl::StrSplit(name, "-of-");
  return numbers.size() == 2 && absl::SimpleAtoi(numbers[0], i) && absl::SimpleAtoi(numbers[1], n);
}

absl::StatusOr<std::vector<std::string>> ShardsOf(const std::string& folder,
                                                  const std::vector<std::string>& names,
                                                  const std::string& stem) {
  std::map<uint64_t, std::map<uint64_t, std::string>> sets;  // n → i → path
  for (const std::string& name : names) {
    uint64_t i = 0, n = 0;
    if (ParseShard(name, stem, &i, &n)) sets[n][i] = JoinPath(folder, name);
  }
  if (sets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": holds no ", stem, ".safetensors, nor several that make one"));
  }
  if (sets.size() > 1) {
    return absl::DataLossError(
        absl::StrCat(folder, ": holds files of more than one set of shards (of ",
                     sets.begin()->first, " and of ", sets.rbegin()->first, ")"));
  }
  const auto& [n, shards] = *sets.begin();
  // Ours count from 0, PyTorch's from 1.
  const uint64_t first = shards.begin()->first == 0 ? 0 : 1;
  std::vector<std::string> files;
  for (uint64_t i = first; n <= kShardsMax && i < first + n; ++i) {
    const auto found = shards.find(i);
    if (found == shards.end()) {
      return absl::DataLossError(absl::StrCat(folder, ": of the ", n, " files ", stem, "-<i>-of-",
                                              n, " number ", i, " is missing"));
    }
    files.push_back(found->second);
  }
  return files;
}

}  // namespace

bool WentAway(const CkptPlace& place) {
  return place.is_checkpoint && !IsFolder(place.path);
}

bool IsFolder(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<CheckpointsFolder> FindCheckpoints(const std::string& word) {
  const std::string name = word.empty() ? "runs/latest" : WithoutSlash(word);
  for (const std::string& path : {name, JoinPath("runs", name)}) {
    const std::string inside = JoinPath(path, "checkpoints");
    if (IsFolder(inside) || Exists(JoinPath(path, "job.json"))) {
      return CheckpointsFolder{inside, path};
    }
    const bool own_name = absl::EndsWith(absl::StrCat("/", path), "/checkpoints");
    if (IsFolder(path) && (own_name || !CommittedSteps(PosixFileSystem(), path).empty())) {
      const std::string parent = ParentPath(path);
      return CheckpointsFolder{path, Exists(JoinPath(parent, "job.json")) ? parent : ""};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": is no run folder and no folder of checkpoints, and no job in ./runs"));
}

absl::StatusOr<CkptPlace> FindPlace(const std::string& word, const std::string& run_dir) {
  uint64_t step = 0;
  const bool is_step = absl::SimpleAtoi(word, &step);
  if (is_step || (ParseCheckpointName(word, &step) && !Exists(word)))
    return NamedCheckpoint(CheckpointName(step), word, run_dir);
  if (word == kBest && !Exists(word)) return NamedCheckpoint(kBest, word, run_dir);
  if (word.empty()) {
    const absl::StatusOr<CheckpointsFolder> folder = FindCheckpoints(run_dir);
    if (!folder.ok()) return folder.status();
    return Newest(folder->path);
  }
  const std::string path = WithoutSlash(word);
  if (!IsFolder(path) && Exists(path)) return CkptPlace{false, path};
  if (Exists(JoinPath(path, kManifestName))) return CkptPlace{true, path};
  const absl::StatusOr<CheckpointsFolder> folder = FindCheckpoints(path);
  if (folder.ok()) return Newest(folder->path);
  if (IsFolder(path)) return CkptPlace{false, path};
  return absl::InvalidArgumentError(absl::StrCat(
      word, ": is no step, no checkpoint, no run and no file; give a step as in 400, or a path"));
}

absl::StatusOr<std::vector<std::string>> WeightFiles(const std::string& path,
                                                     const std::string& stem) {
  if (!IsFolder(path)) {
    if (absl::EndsWith(path, ".json")) return FilesOfIndex(path);
    return std::vector<std::string>{path};
  }
  const std::string whole = JoinPath(path, stem + ".safetensors");
  if (Exists(whole)) return std::vector<std::string>{whole};
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(path);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (name == stem + kIndexEnding) return FilesOfIndex(JoinPath(path, name));
  }
  return ShardsOf(path, *names, stem);
}

}  // namespace ddprun::cli
