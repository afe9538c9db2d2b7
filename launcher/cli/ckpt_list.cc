// `ddprun ckpt ls` and `verify`.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint_folder.h"
#include "common/safetensors.h"
#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/format.h"

namespace ddprun::cli {
namespace {

// The step of "step-400.bad-g2".
bool ParseBadName(const std::string& name, uint64_t* step) {
  const size_t bad = name.find(".bad-g");
  return bad != std::string::npos && ParseCheckpointName(name.substr(0, bad), step);
}

void FillFromFolder(const std::string& path, CkptEntry* entry) {
  struct stat info = {};
  if (stat(JoinPath(path, kManifestName).c_str(), &info) == 0 || stat(path.c_str(), &info) == 0) {
    entry->modified =
        static_cast<double>(info.st_mtim.tv_sec) + static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    entry->age_seconds = std::max(0.0, now.count() - entry->modified);
  }
  const auto names = PosixFileSystem().List(path);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const auto bytes = PosixFileSystem().FileBytes(JoinPath(path, name));
    if (bytes.ok()) entry->bytes += *bytes;
  }
}

void FillFromManifest(const std::string& path, CkptEntry* entry) {
  const absl::StatusOr<ManifestContent> manifest = ReadManifest(PosixFileSystem(), path);
  absl::Status status = manifest.status();
  if (manifest.ok()) {
    entry->step = manifest->step;
    entry->world_size = manifest->world_size;
    entry->generation = manifest->generation;
    status = CheckSizes(PosixFileSystem(), path, *manifest);
  }
  if (!status.ok() && entry->problem.empty()) entry->problem = std::string(status.message());
}

Json ToJson(const CkptEntry& entry, const std::string& folder) {
  Json json = {{"name", entry.name},
               {"step", entry.step},
               {"path", JoinPath(folder, entry.name)},
               {"modified", entry.modified},
               {"age_s", entry.age_seconds},
               {"bytes", entry.bytes},
               {"world_size", entry.world_size},
               {"generation", entry.generation},
               {"state", entry.problem.empty() ? "ok" : "bad"}};
  if (!entry.problem.empty()) json["problem"] = entry.problem;
  return json;
}

std::string Shown(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

// Every rule of the format, which checksums alone do not tell of a file that was written wrongly.
absl::Status VerifyPlace(const CkptPlace& place) {
  std::vector<std::string> paths = {place.path};
  if (place.is_checkpoint) {
    const auto manifest = VerifyCheckpoint(PosixFileSystem(), place.path);
    if (!manifest.ok()) {
      return absl::DataLossError(absl::StrCat(place.path, ": ", manifest.status().message()));
    }
    paths.clear();
    for (const ManifestFile& file : manifest->files) {
      if (absl::EndsWith(file.name, ".safetensors")) {
        paths.push_back(JoinPath(place.path, file.name));
      }
    }
  } else {
    absl::StatusOr<std::vector<std::string>> files = WeightFiles(place.path);
    if (!files.ok()) return files.status();
    paths = *std::move(files);
  }
  for (const std::string& path : paths) {
    const auto file = SafetensorsFile::Open(path);
    if (!file.ok()) return absl::DataLossError(file.status().message());
  }
  return absl::OkStatus();
}

// All checkpoints of a run, but for those that were rejected.
absl::Status AddRun(const std::string& run, std::vector<CkptPlace>* places) {
  const absl::StatusOr<CheckpointsFolder> folder = FindCheckpoints(run);
  if (!folder.ok()) return folder.status();
  const size_t before = places->size();
  for (const CkptEntry& entry : ListCheckpoints(folder->path)) {
    uint64_t step = 0;
    if (!ParseBadName(entry.name, &step)) {
      places->push_back({.is_checkpoint = true, .path = JoinPath(folder->path, entry.name)});
    }
  }
  if (places->size() > before) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there are no checkpoints in ", folder->path));
}

absl::StatusOr<std::vector<CkptPlace>> PlacesToVerify(const Options& options) {
  std::vector<CkptPlace> places;
  const std::string run_dir = options.run_dir.value_or("");
  for (const std::string& word : options.ckpt.words) {
    absl::StatusOr<CkptPlace> place = FindPlace(word, run_dir);
    if (!place.ok()) return place.status();
    const bool is_run = place->newest_of_run;
    if (!is_run) {
      places.push_back(*std::move(place));
    } else if (absl::Status status = AddRun(word, &places); !status.ok()) {
      return status;
    }
  }
  if (!places.empty()) return places;
  if (absl::Status status = AddRun(run_dir, &places); !status.ok()) return status;
  return places;
}

}  // namespace

std::vector<CkptEntry> ListCheckpoints(const std::string& folder) {
  std::vector<CkptEntry> entries;
  const auto names = PosixFileSystem().List(folder);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    CkptEntry entry;
    entry.name = name;
    const std::string path = JoinPath(folder, name);
    if (ParseBadName(name, &entry.step)) {
      entry.problem = absl::StrCat("rejected by generation ", name.substr(name.rfind('g') + 1));
    } else if (!ParseCheckpointName(name, &entry.step) && name != "best") {
      continue;
    }
    FillFromFolder(path, &entry);
    FillFromManifest(path, &entry);
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const CkptEntry& a, const CkptEntry& b) { return a.step < b.step; });
  return entries;
}

absl::Status CkptList(const Options& options) {
  const std::string word = options.ckpt.words.empty() ? "" : options.ckpt.words[0];
  const absl::StatusOr<CheckpointsFolder> folder = FindCheckpoints(word);
  if (!folder.ok()) return folder.status();
  const std::vector<CkptEntry> entries = ListCheckpoints(folder->path);
  if (options.json) {
    Json list = Json::array();
    for (const CkptEntry& entry : entries) list.push_back(ToJson(entry, folder->path));
    std::puts(Shown(list).c_str());
    return absl::OkStatus();
  }
  if (entries.empty()) {
    std::printf("there are no checkpoints in %s\n", folder->path.c_str());
    return absl::OkStatus();
  }
  std::printf("%-20s %10s  %-14s %9s %6s  %s\n", "CHECKPOINT", "STEP", "AGE", "SIZE", "RANKS",
              "STATE");
  for (const CkptEntry& entry : entries) {
    const std::string ranks = entry.world_size == 0 ? "?" : absl::StrCat(entry.world_size);
    const std::string state = entry.problem.empty() ? "ok" : absl::StrCat("bad: ", entry.problem);
    std::printf("%-20s %10llu  %-14s %9s %6s  %s\n", entry.name.c_str(),
                static_cast<unsigned long long>(entry.step), Duration(entry.age_seconds).c_str(),
                SizeText(entry.bytes).c_str(), ranks.c_str(), ForPeople(state).c_str());
  }
  return absl::OkStatus();
}

absl::Status CkptVerify(const Options& options) {
  const absl::StatusOr<std::vector<CkptPlace>> places = PlacesToVerify(options);
  if (!places.ok()) return places.status();
  Json list = Json::array();
  size_t bad = 0;
  for (const CkptPlace& place : *places) {
    const absl::Status status = VerifyPlace(place);
    // Nobody asked for this one, and its job has removed it meanwhile.
    if (!status.ok() && WentAway(place)) continue;
    const std::string problem(status.message());
    if (!status.ok()) ++bad;
    list.push_back({{"path", place.path}, {"state", status.ok() ? "ok" : "bad"}});
    if (!status.ok()) list.back()["problem"] = problem;
    if (options.json) continue;
    if (status.ok()) {
      std::printf("ok   %s\n", place.path.c_str());
    } else {
      std::printf("BAD  %s\n", ForPeople(problem).c_str());
    }
    std::fflush(stdout);
  }
  if (options.json) std::puts(Shown(list).c_str());
  if (bad == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("ckpt verify: ", bad, " of ", places->size(),
                                          bad == 1 ? " is bad" : " are bad"));
}

}  // namespace ddprun::cli
