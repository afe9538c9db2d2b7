#include "worker/data/image_folder_dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/shown.h"
#include "worker/data/image_decode.h"
#include "worker/data/image_resample.h"
#include "worker/parallel/seeds.h"

namespace ddprun {
namespace {

// Enough for the header of nearly every picture; where it is not, Check reads the whole file.
constexpr int64_t kHeaderBytes = 16 << 10;

class FileBytes {
 public:
  std::string_view view() const { return {data_.data(), size_}; }
  // At most `bytes_max` from the beginning; memory of an earlier file is used again.
  absl::Status Read(const std::string& path, int64_t bytes_max) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Failed("opened");
    const absl::Cleanup closer = [fd] { close(fd); };
    struct stat info;
    if (fstat(fd, &info) != 0) return Failed("examined");
    if (info.st_size > kImageFileBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("has ", info.st_size, " bytes; up to ",
                                                     kImageFileBytesMax, " are accepted"));
    }
    const auto wanted = static_cast<size_t>(std::min<int64_t>(info.st_size, bytes_max));
    if (data_.size() < wanted) data_.resize(wanted);
    size_ = 0;
    while (size_ < wanted) {
      const ssize_t got = read(fd, data_.data() + size_, wanted - size_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read");
      if (got == 0) break;  // became shorter meanwhile: the decoder will tell
      size_ += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

 private:
  // Only a file that is not there or not ours to read stays so; after another error (of a network
  // file system, of a disk) the next attempt may succeed.
  static absl::Status Failed(const char* what) {
    const bool stays = errno == ENOENT || errno == EACCES;
    return absl::Status(stays ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal,
                        absl::StrCat("cannot be ", what, ": ", strerror(errno)));
  }
  std::vector<char> data_;
  size_t size_ = 0;
};

// What a thread keeps from sample to sample.
struct Scratch {
  FileBytes file;
  RgbxImage image;
  ImageResampler resampler;
};

absl::Status SampleError(const std::string& path, int64_t index, const absl::Status& status) {
  const char* const advice =
      absl::IsInvalidArgument(status) ? "; replace the file or remove it" : "";
  return absl::Status(status.code(), absl::StrCat(Shown(path, PATH_MAX), " (sample ", index, ") ",
                                                  status.message(), advice));
}

std::string TestDir(const std::string& dir) {
  const std::string val = absl::StrCat(dir, "/val");
  return access(val.c_str(), F_OK) == 0 ? val : absl::StrCat(dir, "/test");
}

// Classes of both splits, before any picture is listed.
absl::Status CheckClasses(const TrainConfig& config) {
  const std::string train_dir = absl::StrCat(config.data_dir, "/train");
  const auto train = ImageFolder::ListClasses(train_dir);
  if (!train.ok()) return absl::InvalidArgumentError(train.status().message());
  const std::string test_dir = TestDir(config.data_dir);
  const auto test = ImageFolder::ListClasses(test_dir);
  if (absl::IsNotFound(test.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.data_dir,
                     " has neither a folder val nor a folder test; add one, or "
                     "set train.evaluate = false"));
  }
  if (!test.ok()) return test.status();
  return CompareClasses(train_dir, *train, test_dir, *test);
}

absl::StatusOr<ImageSampleOptions> OptionsOf(const TrainConfig& config, DataSplit split) {
  ImageSampleOptions options;
  options.augment = split == DataSplit::kTrain && config.data_augment != "none";
  options.side = static_cast<int>(config.data_image_size);
  options.shorter = static_cast<int>(config.data_resize);
  options.seed = config.train_seed;
  if (config.data_normalize != "none") options.scale = kImageNetScale;
  const bool centered = config.train_evaluate || !options.augment;
  if (centered && options.shorter < options.side) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[data] resize: ", options.shorter, " is smaller than image_size = ", options.side,
        ", which is cut out of it; set data.resize to ", options.side, " or more (usual are ",
        options.side * 8 / 7, ")"));
  }
  return options;
}

// One rank is enough to say it.
void SayWhatIsPassedOver(const ImageFolder& folder) {
  const char* const rank = getenv("RANK");
  if (folder.passed_over() == 0 || (rank != nullptr && strcmp(rank, "0") != 0)) return;
  const std::string example = Shown(folder.passed_over_example(), PATH_MAX);
  if (folder.passed_over() == 1) {
    fprintf(stderr, "%s is no regular file .jpg, .jpeg or .png and is left out\n", example.c_str());
    return;
  }
  fprintf(stderr,
          "%s: %" PRId64
          " entries are no regular files .jpg, .jpeg or .png and are left out, among them %s\n",
          Shown(folder.dir(), PATH_MAX).c_str(), folder.passed_over(), example.c_str());
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

SampleSpec ImageFolderDataset::spec() const {
  SampleSpec spec;
  spec.input_shape = {3, options_.side, options_.side};
  spec.classes = static_cast<int64_t>(folder_.classes().size());
  return spec;
}

CropPlan ImageFolderDataset::Plan(int64_t epoch, int64_t index, const ImageSize& size) const {
  if (!options_.augment) return PlanCenterCrop(size, options_.shorter, options_.side);
  SampleRandom random(DeriveSeed(options_.seed, SeedPurpose::kAugmentation, {epoch, index, 0}));
  return PlanRandomCrop(size, options_.side, random);
}

absl::Status ImageFolderDataset::Fill(int64_t epoch, int64_t index, void* inputs,
                                      int64_t* targets) const {
  const std::string path = folder_.Path(index);
  const absl::Status status = FillFrom(path, epoch, index, static_cast<float*>(inputs));
  if (!status.ok()) return SampleError(path, index, status);
  *targets = folder_.Class(index);
  return absl::OkStatus();
}

absl::Status ImageFolderDataset::FillFrom(const std::string& path, int64_t epoch, int64_t index,
                                          float* out) const {
  thread_local Scratch scratch;
  absl::Status read = scratch.file.Read(path, kImageFileBytesMax);
  if (!read.ok()) return read;
  const absl::StatusOr<ImageSize> size = ReadImageSize(scratch.file.view());
  if (!size.ok()) return size.status();
  const PixelBox needed = scratch.resampler.Prepare(Plan(epoch, index, *size));
  absl::Status decoded = DecodeImage(scratch.file.view(), needed, &scratch.image);
  if (!decoded.ok()) return decoded;
  scratch.resampler.Run(scratch.image, options_.scale, out);
  return absl::OkStatus();
}

std::string ImageFolderDataset::NameOf(int64_t index) const {
  return absl::StrCat("sample ", index, " (", Shown(folder_.Path(index), PATH_MAX), ")");
}

absl::Status ImageFolderDataset::Check(double seconds) const {
  const auto begin = std::chrono::steady_clock::now();
  FileBytes file;
  // Steps of the golden ratio, so that whatever is looked at lies spread over all.
  int64_t step = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(size()) * 0.618));
  while (std::gcd(step, size()) != 1) ++step;
  int64_t index = 0;
  for (int64_t i = 0; i < size() && SecondsSince(begin) < seconds; ++i) {
    const std::string path = folder_.Path(index);
    absl::Status status = file.Read(path, kHeaderBytes);
    if (status.ok()) status = ReadImageSize(file.view()).status();
    if (!status.ok() && file.view().size() == kHeaderBytes) {
      status = file.Read(path, kImageFileBytesMax);
      if (status.ok()) status = ReadImageSize(file.view()).status();
    }
    if (!status.ok()) return SampleError(path, index, status);
    index = (index + step) % size();
  }
  return absl::OkStatus();
}

DatasetOr OpenImageFolder(const TrainConfig& config, DataSplit split, const std::string&) {
  const absl::StatusOr<ImageSampleOptions> options = OptionsOf(config, split);
  if (!options.ok()) return options.status();
  if (split == DataSplit::kTest || config.train_evaluate) {
    absl::Status classes = CheckClasses(config);
    if (!classes.ok()) return classes;
  }
  absl::StatusOr<ImageFolder> folder =
      ImageFolder::List(split == DataSplit::kTest ? TestDir(config.data_dir)
                                                  : absl::StrCat(config.data_dir, "/train"));
  if (!folder.ok()) return absl::InvalidArgumentError(folder.status().message());
  SayWhatIsPassedOver(*folder);
  return std::make_shared<const ImageFolderDataset>(*std::move(folder), *options);
}

}  // namespace ddprun
