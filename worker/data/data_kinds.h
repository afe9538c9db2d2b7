// One function a data kind. Each reads what it needs from the configuration; see OpenDataset.
#pragma once

#include <memory>
#include <string>

#include "worker/data/dataset.h"

namespace ddprun {

using DatasetOr = absl::StatusOr<std::shared_ptr<const Dataset>>;

DatasetOr OpenCifar10(const TrainConfig& config, DataSplit split, const std::string& cache_dir);
DatasetOr OpenIdx(const TrainConfig& config, DataSplit split, const std::string& cache_dir);
DatasetOr OpenImageFolder(const TrainConfig& config, DataSplit split, const std::string& cache_dir);
DatasetOr OpenSynthetic(const TrainConfig& config, DataSplit split, const std::string& cache_dir);
DatasetOr OpenTokens(const TrainConfig& config, DataSplit split, const std::string& cache_dir);

}  // namespace ddprun
