#include "worker/data/cifar_file.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/data/pixel_statistics.h"

namespace ddprun {
namespace {

constexpr const char* kFolder = "cifar-10-batches-bin";

std::vector<std::string> CifarFileNames(DataSplit split) {
  if (split == DataSplit::kTest) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
          "data_batch_5.bin"};
}

std::string FindCifarFolder(const std::string& dir) {
  std::string below = absl::StrCat(dir, "/", kFolder);
  for (const char* name : {"/data_batch_1.bin", "/test_batch.bin"}) {
    if (access((dir + name).c_str(), F_OK) == 0) return dir;
    if (access((below + name).c_str(), F_OK) == 0) return below;
  }
  return dir;
}

absl::Status CheckCifarFile(const MappedFile& file) {
  if (file.size() % kCifarRecordBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", file.size(), " bytes are no whole number of records of ",
                     kCifarRecordBytes, " bytes (", file.size() / kCifarRecordBytes,
                     " records and ", file.size() % kCifarRecordBytes,
                     " bytes more); copy the file again, and take the binary version of CIFAR-10"));
  }
  for (int64_t record = 0; record < file.size() / kCifarRecordBytes; ++record) {
    const int label = file.data()[record * kCifarRecordBytes];
    if (label < kCifarClasses) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": record ", record, " has label ", label,
                     ", CIFAR-10 has 0 to 9; copy the file again, and take the binary version of "
                     "CIFAR-10 (not CIFAR-100)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CifarFiles>> CifarFiles::Open(const std::string& dir,
                                                                   DataSplit split) {
  const std::string folder = FindCifarFolder(dir);
  std::shared_ptr<CifarFiles> all(new CifarFiles());
  for (const std::string& name : CifarFileNames(split)) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<std::shared_ptr<const MappedFile>> file = MappedFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(
          path, ": no such data file; data.dir must hold the binary version of CIFAR-10",
          " (data_batch_1.bin to data_batch_5.bin, test_batch.bin), itself or in ", kFolder));
    }
    if (!file.ok()) return file.status();
    if (absl::Status status = CheckCifarFile(**file); !status.ok()) return status;
    all->begins_.push_back(all->samples_);
    all->samples_ += (*file)->size() / kCifarRecordBytes;
    all->files_.push_back(*std::move(file));
  }
  return all;
}

CifarFiles::Place CifarFiles::PlaceOf(int64_t index) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  return {static_cast<size_t>(after - begins_.begin()) - 1, index - *(after - 1)};
}

const uint8_t* CifarFiles::Record(int64_t index) const {
  const Place place = PlaceOf(index);
  return files_[place.file]->data() + place.record * kCifarRecordBytes;
}

std::string CifarFiles::NameOf(int64_t index) const {
  const Place place = PlaceOf(index);
  return absl::StrCat(files_[place.file]->path(), ", record ", place.record);
}

ChannelStatistics ComputeChannelStatistics(const CifarFiles& files) {
  std::array<PixelSums, 3> sums;
  for (int64_t index = 0; index < files.size(); ++index) {
    const uint8_t* pixels = files.Record(index) + 1;
    for (size_t c = 0; c < sums.size(); ++c) {
      sums[c].Add(pixels + static_cast<int64_t>(c) * kCifarPixels, kCifarPixels);
    }
  }
  ChannelStatistics statistics;
  for (size_t c = 0; c < sums.size(); ++c) {
    const PixelStatistics channel = sums[c].Statistics();
    statistics.mean[c] = channel.mean;
    statistics.deviation[c] = channel.deviation;
  }
  return statistics;
}

}  // namespace ddprun
