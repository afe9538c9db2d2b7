// The `image_folder` data kind: pictures decoded, cut and scaled when they are asked for.
//
// Of a training picture, a random part and its mirroring depend on seed, epoch and sample alone.
// Immutable; any thread; each keeps buffers of its own from sample to sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/data_kinds.h"
#include "worker/data/image_crop.h"
#include "worker/data/image_folder.h"
#include "worker/data/image_kernels.h"

namespace ddprun {

// A file may be this large, however few pixels it has.
inline constexpr int64_t kImageFileBytesMax = int64_t{256} << 20;

struct ImageSampleOptions {
  bool augment = false;  // PlanRandomCrop, else PlanCenterCrop
  int side = 224;
  int shorter = 256;  // PlanCenterCrop
  ChannelScale scale;
  int64_t seed = 0;
};

class ImageFolderDataset : public Dataset {
 public:
  ImageFolderDataset(ImageFolder folder, const ImageSampleOptions& options)
      : folder_(std::move(folder)), options_(options) {}

  int64_t size() const override { return folder_.size(); }
  SampleSpec spec() const override;
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override;
  std::string NameOf(int64_t index) const override;
  uint64_t Digest() const override { return folder_.Digest(); }
  // Reads the headers of as many pictures as the time allows, spread evenly over all.
  absl::Status Check(double seconds) const override;

  // The part of the picture that Fill takes.
  CropPlan Plan(int64_t epoch, int64_t index, const ImageSize& size) const;

 private:
  absl::Status FillFrom(const std::string& path, int64_t epoch, int64_t index, float* out) const;

  const ImageFolder folder_;
  const ImageSampleOptions options_;
};

}  // namespace ddprun
