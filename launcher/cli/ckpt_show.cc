// `ddprun ckpt show`.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_folder.h"
#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/ckpt_weights.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/format.h"

namespace ddprun::cli {
namespace {

Json ManifestJson(const ManifestContent& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
  }
  return {{"job_id", manifest.job_id},
          {"step", manifest.step},
          {"generation", manifest.generation},
          {"world_size", manifest.world_size},
          {"files", std::move(files)}};
}

// Where training stood; null where the file says nothing that can be read.
Json TrainerState(const std::string& path) {
  const auto text = PosixFileSystem().ReadFile(JoinPath(path, "trainer_state.json"));
  if (!text.ok()) return nullptr;
  Json state = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return state.is_object() ? state : Json(nullptr);
}

Json Tensors(const Weights& weights) {
  Json list = Json::array();
  for (const auto& [name, weight] : weights.tensors()) {
    list.push_back({{"name", name}, {"dtype", weight.dtype}, {"shape", weight.shape}});
  }
  return list;
}

void PrintState(const Json& state) {
  if (!state.is_object()) return;
  std::puts("trainer state:");
  for (const auto& [key, value] : state.items()) {
    // Both are long; --json has them.
    if (key == "config" || key == "bucket_layout") continue;
    std::printf("  %-18s %s\n", key.c_str(), value.dump().c_str());
  }
}

void PrintTensors(const Weights& weights) {
  uint64_t elements = 0;
  size_t widest = 0;
  for (const auto& [name, weight] : weights.tensors()) {
    elements += weight.elements();
    widest = std::max(widest, name.size());
  }
  constexpr size_t kNameColumnMax = 60;
  const int column = static_cast<int>(std::min(widest, kNameColumnMax));
  std::printf("%zu tensors, %llu elements:\n", weights.tensors().size(),
              static_cast<unsigned long long>(elements));
  for (const auto& [name, weight] : weights.tensors()) {
    std::printf("  %-*s %-5s %s\n", column, ForPeople(name).c_str(), weight.dtype.c_str(),
                ShapeText(weight.shape).c_str());
  }
}

void PrintManifest(const ManifestContent& manifest, const std::string& path) {
  std::printf("%s: step %llu of job %s, written by generation %llu with %llu ranks\n", path.c_str(),
              static_cast<unsigned long long>(manifest.step), manifest.job_id.c_str(),
              static_cast<unsigned long long>(manifest.generation),
              static_cast<unsigned long long>(manifest.world_size));
  std::puts("files:");
  for (const ManifestFile& file : manifest.files) {
    std::printf("  %-32s %10s  xxh3_128 %s\n", file.name.c_str(), SizeText(file.bytes).c_str(),
                ForPeople(file.xxh3_128).c_str());
  }
}

}  // namespace

absl::Status CkptShow(const Options& options) {
  const std::string word = options.ckpt.words.empty() ? "" : options.ckpt.words[0];
  const absl::StatusOr<CkptPlace> place = FindPlace(word, options.run_dir.value_or(""));
  if (!place.ok()) return place.status();
  ManifestContent manifest;
  if (place->is_checkpoint) {
    absl::StatusOr<ManifestContent> read = ReadManifest(PosixFileSystem(), place->path);
    if (!read.ok()) {
      return absl::DataLossError(absl::StrCat(place->path, ": ", read.status().message()));
    }
    manifest = *std::move(read);
  }
  const absl::StatusOr<std::vector<std::string>> files = WeightFiles(place->path);
  if (!files.ok()) return files.status();
  const absl::StatusOr<Weights> weights = Weights::Open(*files);
  if (!weights.ok()) return weights.status();
  const std::string digest = weights->Digest();
  const Json state = place->is_checkpoint ? TrainerState(place->path) : Json(nullptr);
  if (options.json) {
    Json all = {{"path", place->path}};
    if (place->is_checkpoint) all["manifest"] = ManifestJson(manifest);
    if (state.is_object()) all["trainer_state"] = state;
    all["tensors"] = Tensors(*weights);
    all["weights_digest"] = digest;
    std::puts(all.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return absl::OkStatus();
  }
  if (place->is_checkpoint) PrintManifest(manifest, place->path);
  PrintState(state);
  PrintTensors(*weights);
  std::printf("weights digest: %s\n", digest.c_str());
  return absl::OkStatus();
}

}  // namespace ddprun::cli
