#include "worker/data/data_kinds.h"

#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

struct DataKind {
  const char* name;
  DatasetOr (*open)(const TrainConfig&, DataSplit, const std::string&);
};
constexpr DataKind kDataKinds[] = {
    {"cifar10", &OpenCifar10},     {"idx", &OpenIdx},       {"image_folder", &OpenImageFolder},
    {"synthetic", &OpenSynthetic}, {"tokens", &OpenTokens},
};

}  // namespace

DatasetOr OpenDataset(const TrainConfig& config, DataSplit split, const std::string& cache_dir) {
  for (const DataKind& kind : kDataKinds) {
    if (config.data_kind == kind.name) return kind.open(config, split, cache_dir);
  }
  return absl::UnimplementedError(
      absl::StrCat("[data] kind: this worker has no \"", config.data_kind, "\""));
}

int64_t ElementCount(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace ddprun
