// manifest.json of a checkpoint (docs/checkpoints.md).
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint_manifest.h"
#include "common/safetensors.h"
#include "launcher/coordinator/checkpoint_store.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// A tensor that is a part of a larger one says so in the file's metadata: "<name>.global_shape" =
// "4,8" and "<name>.offset" = "2,0".
std::vector<int64_t> MetadataList(const SafetensorsHeader& header, const std::string& key,
                                  std::vector<int64_t> fallback) {
  auto found = header.metadata.find(key);
  if (found == header.metadata.end()) return fallback;
  std::vector<int64_t> list;
  for (absl::string_view part : absl::StrSplit(found->second, ',', absl::SkipEmpty())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value)) return fallback;
    list.push_back(value);
  }
  return list;
}

absl::Status AddTensors(FileSystem& files, const std::string& path, const std::string& name,
                        Json& tensors) {
  absl::StatusOr<std::string> data = files.ReadFile(path);
  if (!data.ok()) return data.status();
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*data, data->size());
  if (!header.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", header.status().message()));
  }
  for (const TensorInfo& tensor : header->tensors) {
    tensors.push_back(
        Json{{"name", tensor.name},
             {"file", name},
             {"dtype", tensor.dtype},
             {"global_shape", MetadataList(*header, tensor.name + ".global_shape", tensor.shape)},
             {"offset", MetadataList(*header, tensor.name + ".offset",
                                     std::vector<int64_t>(tensor.shape.size(), 0))},
             {"extent", tensor.shape}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakeManifest(FileSystem& files, const std::string& folder,
                                         const std::string& job_id,
                                         const CommitCheckpoint& commit) {
  Json list = Json::array();
  Json tensors = Json::array();
  for (const v1::ShardFile& file : commit.files) {
    if (!IsShardName(file.name())) {
      return absl::DataLossError("a rank reported a file whose name no checkpoint may have");
    }
    const std::string path = JoinPath(folder, file.name());
    absl::StatusOr<uint64_t> bytes = files.FileBytes(path);
    if (!bytes.ok()) return bytes.status();
    if (*bytes != file.bytes()) {
      return absl::DataLossError(
          absl::StrCat(path, " holds ", *bytes, " bytes; its writer reported ", file.bytes()));
    }
    list.push_back(
        Json{{"name", file.name()}, {"bytes", file.bytes()}, {"xxh3_128", file.xxh3_128()}});
    if (absl::EndsWith(file.name(), ".safetensors")) {
      absl::Status status = AddTensors(files, path, file.name(), tensors);
      if (!status.ok()) return status;
    }
  }
  Json manifest = {{"format", 1},
                   {"job_id", job_id},
                   {"generation", commit.generation},
                   {"step", commit.step},
                   {"world_size", commit.world_size},
                   {"files", std::move(list)},
                   {"tensors", std::move(tensors)}};
  return manifest.dump(1) + "\n";
}

}  // namespace ddprun::coordinator
