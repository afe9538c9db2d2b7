// `ddprun ckpt export` and `convert`: weights of a checkpoint, or of another program's files, to
// files of their own.
#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint_folder.h"
#include "common/edit_distance.h"
#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/ckpt_numbers.h"
#include "launcher/cli/ckpt_output.h"
#include "launcher/cli/ckpt_weights.h"

namespace ddprun::cli {
namespace {

constexpr size_t kNameBytesMax = 300;  // of which a distance is computed

// The name of the tensors most like it.
std::string Nearest(const std::string& wanted, const Weights& weights) {
  std::string best;
  size_t best_distance = wanted.size() / 2 + 2;
  for (const auto& [name, weight] : weights.tensors()) {
    if (name.size() > kNameBytesMax || wanted.size() > kNameBytesMax) continue;
    const size_t distance = EditDistance(wanted, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  if (best.empty() && !weights.tensors().empty()) best = weights.tensors().begin()->first;
  return best.empty() ? "there are no tensors" : absl::StrCat("there is \"", best, "\"");
}

// One rule of --rename or --prefix-strip; whether it was of use is remembered.
struct Renaming {
  std::string option;  // for messages
  std::string from;
  std::string to;
  bool prefix = false;
  bool used = false;

  std::string Apply(const std::string& name) {
    const bool fits = prefix ? absl::StartsWith(name, from) : name == from;
    if (!fits) return name;
    used = true;
    return to + name.substr(from.size());
  }
};

std::vector<Renaming> RenamingsOf(const CkptOptions& options) {
  std::vector<Renaming> all;
  if (!options.stripped_prefix.empty()) {
    all.push_back({absl::StrCat("--prefix-strip ", options.stripped_prefix),
                   options.stripped_prefix, "", true});
  }
  for (const auto& [from, to] : options.renames) {
    all.push_back({absl::StrCat("--rename ", from, "=", to), from, to, from.back() == '.'});
  }
  return all;
}

absl::StatusOr<std::string> TargetDtype(const std::string& name, const Weight& weight,
                                        const std::string& wanted) {
  if (wanted.empty() || weight.dtype == wanted) return weight.dtype;
  if (IsFloatDtype(weight.dtype)) return wanted;
  // Counters and masks stay what they are; quantised numbers mean nothing without their scales.
  if (absl::StartsWith(weight.dtype, "F") || absl::StartsWith(weight.dtype, "C")) {
    return absl::DataLossError(absl::StrCat("tensor \"", name, "\" is of type ", weight.dtype,
                                            ", which cannot be converted; leave --dtype away"));
  }
  return weight.dtype;
}

absl::StatusOr<std::vector<OutputTensor>> OutputsOf(const Weights& weights,
                                                    const CkptOptions& options) {
  std::vector<Renaming> renamings = RenamingsOf(options);
  std::vector<OutputTensor> outputs;
  std::map<std::string, std::string> sources;  // new name → old name
  for (const auto& [old_name, weight] : weights.tensors()) {
    std::string name = old_name;
    for (Renaming& renaming : renamings) name = renaming.Apply(name);
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", old_name, "\" would have no name"));
    }
    const auto [place, is_new] = sources.try_emplace(name, old_name);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tensors \"", place->second, "\" and \"",
                                                     old_name, "\" would both be \"", name, "\""));
    }
    const absl::StatusOr<std::string> dtype = TargetDtype(old_name, weight, options.dtype);
    if (!dtype.ok()) return dtype.status();
    outputs.push_back({name, *dtype, &weight});
  }
  for (const Renaming& renaming : renamings) {
    if (!renaming.used) {
      return absl::InvalidArgumentError(absl::StrCat(renaming.option, ": no tensor's name ",
                                                     renaming.prefix ? "begins so; " : "is so; ",
                                                     Nearest(renaming.from, weights)));
    }
  }
  return outputs;
}

absl::Status Write(const Weights& weights, const Options& options) {
  const absl::StatusOr<std::vector<OutputTensor>> outputs = OutputsOf(weights, options.ckpt);
  if (!outputs.ok()) return outputs.status();
  OutputFiles files{options.output, options.ckpt.shards, options.force, weights.metadata()};
  files.metadata.try_emplace("format", "pt");  // what other readers of the format look for
  const absl::StatusOr<std::vector<std::string>> written = WriteTensors(*outputs, files);
  if (!written.ok()) return written.status();
  std::printf("wrote %zu tensors to %s\n", outputs->size(), absl::StrJoin(*written, ", ").c_str());
  return absl::OkStatus();
}

// The files of the checkpoint that are about to be used are what its manifest says.
absl::Status CheckFiles(const std::string& path, const std::vector<std::string>& paths) {
  absl::StatusOr<ManifestContent> manifest = ReadManifest(PosixFileSystem(), path);
  absl::Status status = manifest.status();
  for (size_t i = 0; status.ok() && i < manifest->files.size(); ++i) {
    const ManifestFile& file = manifest->files[i];
    const std::string own = JoinPath(path, file.name);
    if (std::find(paths.begin(), paths.end(), own) == paths.end()) continue;
    status = CheckManifestFile(PosixFileSystem(), path, file);
  }
  if (status.ok()) return status;
  return absl::DataLossError(
      absl::StrCat(path, ": ", status.message(), "; take another one (ddprun ckpt ls)"));
}

absl::StatusOr<std::vector<std::string>> FilesOf(const CkptPlace& place, const std::string& stem) {
  absl::StatusOr<std::vector<std::string>> paths = WeightFiles(place.path, stem);
  if (!paths.ok() || !place.is_checkpoint) return paths;
  if (absl::Status status = CheckFiles(place.path, *paths); !status.ok()) return status;
  return paths;
}

absl::StatusOr<Weights> OpenOf(const CkptPlace& place, const std::string& stem) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesOf(place, stem);
  if (!paths.ok()) return paths.status();
  return Weights::Open(*paths);
}

absl::StatusOr<CkptPlace> CheckpointOf(const Options& options) {
  const std::string word = options.ckpt.words.empty() ? "" : options.ckpt.words[0];
  absl::StatusOr<CkptPlace> place = FindPlace(word, options.run_dir.value_or(""));
  if (!place.ok() || place->is_checkpoint) return place;
  return absl::InvalidArgumentError(absl::StrCat(
      place->path, ": is no checkpoint; for other files there is ddprun ckpt convert"));
}

}  // namespace

absl::StatusOr<std::string> CheckpointToExport(const Options& options) {
  const absl::StatusOr<CkptPlace> place = CheckpointOf(options);
  if (!place.ok()) return place.status();
  const auto files = FilesOf(*place, "model");
  if (!files.ok()) return files.status();
  return place->path;
}

absl::Status CkptExport(const Options& options) {
  const absl::StatusOr<CkptPlace> place = CheckpointOf(options);
  if (!place.ok()) return place.status();
  absl::StatusOr<Weights> weights = OpenOf(*place, "model");
  if (!weights.ok()) return weights.status();
  if (options.ckpt.ema) {
    absl::StatusOr<Weights> averaged = OpenOf(*place, "ema");
    if (absl::IsInvalidArgument(averaged.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ema: ", place->path,
                       " holds no averaged weights; they are kept with [train] ema_decay"));
    }
    if (!averaged.ok()) return averaged.status();
    if (absl::Status status = weights->Overlay(*std::move(averaged)); !status.ok()) return status;
  }
  return Write(*weights, options);
}

absl::Status CkptConvert(const Options& options) {
  const absl::StatusOr<CkptPlace> place = FindPlace(options.ckpt.words[0], "");
  if (!place.ok()) return place.status();
  const absl::StatusOr<Weights> weights = OpenOf(*place, "model");
  if (!weights.ok()) return weights.status();
  return Write(*weights, options);
}

}  // namespace ddprun::cli
