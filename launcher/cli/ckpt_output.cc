#include "launcher/cli/ckpt_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "launcher/cli/ckpt_numbers.h"
#include "launcher/cli/staged_file.h"

namespace ddprun::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNumbersAtOnce = 1u << 20;  // that are converted before they are written

absl::Status AppendTensor(const OutputTensor& tensor, StagedFile* file) {
  std::string buffer, converted;
  const Weight& weight = *tensor.weight;
  const std::string_view data = weight.Data(&buffer);
  if (tensor.dtype == weight.dtype) return file->Append(data);
  const size_t bytes = static_cast<size_t>(DtypeBits(weight.dtype)) / 8;
  for (size_t first = 0; first < weight.elements(); first += kNumbersAtOnce) {
    const size_t count = std::min<size_t>(kNumbersAtOnce, weight.elements() - first);
    converted.clear();
    const auto* numbers = reinterpret_cast<const uint8_t*>(data.data()) + first * bytes;
    absl::Status status = ConvertNumbers(weight.dtype, tensor.dtype, numbers, count, &converted);
    if (!status.ok()) {
      return absl::OutOfRangeError(absl::StrCat(
          "tensor \"", tensor.name, "\": ", status.message(), " (of those from ", first,
          " on), too large for ", tensor.dtype, "; --dtype bf16 has the range of fp32"));
    }
    status = file->Append(converted);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<StagedFile> StageTensors(const std::vector<const OutputTensor*>& tensors,
                                        const OutputFiles& files, const std::string& path) {
  std::vector<TensorInfo> infos;
  std::map<std::string, const OutputTensor*> by_name;
  for (const OutputTensor* tensor : tensors) {
    infos.push_back({tensor->name, tensor->dtype, tensor->weight->shape});
    by_name[tensor->name] = tensor;
  }
  const absl::StatusOr<std::string> header = BuildSafetensorsHeader(&infos, files.metadata);
  if (!header.ok()) return absl::DataLossError(absl::StrCat(path, ": ", header.status().message()));
  absl::StatusOr<StagedFile> file = StagedFile::Create(path);
  if (!file.ok()) return file.status();
  absl::Status status = file->Append(*header);
  for (size_t i = 0; i < infos.size() && status.ok(); ++i) {
    status = AppendTensor(*by_name[infos[i].name], &*file);
  }
  if (status.ok()) status = file->Sync();
  if (!status.ok()) return status;
  return file;
}

uint64_t OutputBytes(const OutputTensor& tensor) {
  return tensor.weight->elements() * static_cast<uint64_t>(DtypeBits(tensor.dtype)) / 8;
}

// Cuts the list where the bytes so far pass the next equal share; no shard is empty.
std::vector<std::vector<const OutputTensor*>> Cut(const std::vector<OutputTensor>& tensors,
                                                  uint32_t shards) {
  uint64_t total = 0, sum = 0;
  for (const OutputTensor& tensor : tensors) total += OutputBytes(tensor);
  std::vector<std::vector<const OutputTensor*>> cut(1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const double shares = static_cast<double>(total) * static_cast<double>(cut.size()) / shards;
    const bool full =
        static_cast<double>(sum) + static_cast<double>(OutputBytes(tensors[i])) / 2 > shares;
    const bool rest_needed = tensors.size() - i <= shards - cut.size();
    if (!cut.back().empty() && cut.size() < shards && (full || rest_needed)) cut.emplace_back();
    cut.back().push_back(&tensors[i]);
    sum += OutputBytes(tensors[i]);
  }
  return cut;
}

std::string BaseName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

absl::StatusOr<StagedFile> StageIndex(const std::vector<std::vector<const OutputTensor*>>& cut,
                                      const std::vector<std::string>& paths,
                                      const std::string& index_path) {
  uint64_t total = 0;
  Json map = Json::object();
  for (size_t shard = 0; shard < cut.size(); ++shard) {
    for (const OutputTensor* tensor : cut[shard]) {
      map[tensor->name] = BaseName(paths[shard]);
      total += OutputBytes(*tensor);
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  absl::StatusOr<StagedFile> file = StagedFile::Create(index_path);
  if (!file.ok()) return file.status();
  absl::Status status =
      file->Append(index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  if (status.ok()) status = file->Sync();
  if (!status.ok()) return status;
  return file;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WriteTensors(const std::vector<OutputTensor>& tensors,
                                                      const OutputFiles& files) {
  if (files.shards > std::max<size_t>(1, tensors.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shards ", files.shards, ": there are only ", tensors.size(), " tensors"));
  }
  const std::string stem(absl::StripSuffix(files.path, ".safetensors"));
  const auto cut = Cut(tensors, files.shards);
  std::vector<std::string> paths;
  paths.reserve(cut.size() + 1);  // and the index
  for (size_t i = 0; i < cut.size(); ++i) {
    paths.push_back(files.shards == 1
                        ? files.path
                        : absl::StrFormat("%s-%05d-of-%05d.safetensors", stem, i + 1, cut.size()));
  }
  if (files.shards > 1) paths.push_back(files.path + ".index.json");
  for (const std::string& path : paths) {
    if (!files.replace && access(path.c_str(), F_OK) == 0) return ThereAlready(path);
  }
  std::vector<StagedFile> staged;
  staged.reserve(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    absl::StatusOr<StagedFile> file =
        i < cut.size() ? StageTensors(cut[i], files, paths[i]) : StageIndex(cut, paths, paths[i]);
    if (!file.ok()) return file.status();
    staged.push_back(*std::move(file));
  }
  for (StagedFile& file : staged) {
    if (absl::Status status = file.Publish(files.replace); !status.ok()) return status;
  }
  return paths;
}

}  // namespace ddprun::cli
