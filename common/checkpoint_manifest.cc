#include "common/checkpoint_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// nullptr where the key is missing or another kind of value.
const std::string* TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() ? found->get_ptr<const std::string*>() : nullptr;
}
const uint64_t* NumberOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() ? found->get_ptr<const uint64_t*>() : nullptr;
}

absl::StatusOr<ManifestFile> FileOf(const Json& entry) {
  if (!entry.is_object()) return absl::DataLossError("the manifest lists a file without a name");
  const std::string* name = TextOf(entry, "name");
  if (name == nullptr) return absl::DataLossError("the manifest lists a file without a name");
  if (!IsShardName(*name)) {
    return absl::DataLossError(absl::StrCat("the manifest lists the file name \"", *name, "\""));
  }
  const uint64_t* bytes = NumberOf(entry, "bytes");
  const std::string* checksum = TextOf(entry, "xxh3_128");
  if (bytes == nullptr || checksum == nullptr) {
    return absl::DataLossError(
        absl::StrCat("the manifest lists ", *name, " without its size or checksum"));
  }
  return ManifestFile{*name, *bytes, *checksum};
}

}  // namespace

bool IsShardName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != '/'; });
}

absl::StatusOr<ManifestContent> ParseManifest(absl::string_view text) {
  const Json manifest = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object()) return absl::DataLossError("manifest.json is damaged");
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_array()) {
    return absl::DataLossError("manifest.json is damaged");
  }
  const uint64_t* format = NumberOf(manifest, "format");
  if (format == nullptr || *format != 1) {
    return absl::DataLossError("manifest.json has a format that this version does not know");
  }
  ManifestContent content;
  const std::string* job_id = TextOf(manifest, "job_id");
  const uint64_t* step = NumberOf(manifest, "step");
  if (job_id == nullptr || step == nullptr) {
    return absl::DataLossError("manifest.json does not say of which job and step it is");
  }
  content.job_id = *job_id;
  content.step = *step;
  if (const uint64_t* number = NumberOf(manifest, "generation")) content.generation = *number;
  if (const uint64_t* number = NumberOf(manifest, "world_size")) content.world_size = *number;
  for (const Json& entry : *files) {
    absl::StatusOr<ManifestFile> file = FileOf(entry);
    if (!file.ok()) return file.status();
    content.files.push_back(*std::move(file));
  }
  return content;
}

}  // namespace ddprun
