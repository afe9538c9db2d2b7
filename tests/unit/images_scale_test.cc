// Cutting and scaling: bytes as Pillow's, floats as torchvision's, parts distributed as
// RandomResizedCrop's.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "tests/unit/images_data.h"
#include "worker/data/image_crop.h"
#include "worker/data/image_resample.h"

namespace ddprun {
namespace {

std::vector<float> SampleOf(const std::string& name, const CropPlan& plan,
                            const ChannelScale& scale,
                            const ImageKernels& kernels = BestImageKernels()) {
  ImageResampler resampler(kernels);
  const PixelBox needed = resampler.Prepare(plan);
  RgbxImage image;
  EXPECT_TRUE(DecodeImage(PictureBytes(name), needed, &image).ok());
  std::vector<float> out(static_cast<size_t>(plan.window.width * plan.window.height * 3));
  resampler.Run(image, scale, out.data());
  return out;
}

// Three planes of byte / 255 back to rows of RGB.
std::vector<uint8_t> BytesOf(const std::vector<float>& planes) {
  const size_t plane = planes.size() / 3;
  std::vector<uint8_t> bytes(planes.size());
  for (size_t i = 0; i < planes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(std::lround(planes[i % 3 * plane + i / 3] * 255));
  }
  return bytes;
}

CropPlan PlanOf(const std::vector<std::string>& line) {
  CropPlan plan;
  plan.source = {atoi(line[1].c_str()), atoi(line[2].c_str()), atoi(line[3].c_str()),
                 atoi(line[4].c_str())};
  plan.width = plan.height = atoi(line[5].c_str());
  plan.window = {0, 0, plan.width, plan.height};
  plan.flip = line[6] == "1";
  return plan;
}

TEST(ImageScale, BytesArePillowsAndFloatsTorchvisions) {
  for (const auto& line : ExpectedLines("scaled")) {
    SCOPED_TRACE(testing::PrintToString(line));
    const CropPlan plan = PlanOf(line);
    const std::vector<uint8_t> bytes = BytesOf(SampleOf(line[0], plan, ChannelScale()));
    EXPECT_EQ(Crc(bytes.data(), bytes.size()), line[7]);
    const std::vector<float> floats = SampleOf(line[0], plan, kImageNetScale);
    EXPECT_EQ(Crc(floats.data(), floats.size() * sizeof(float)), line[8]);
  }
}

TEST(ImageScale, EvaluationTakesTorchvisionsMiddle) {
  for (const auto& line : ExpectedLines("centered")) {
    SCOPED_TRACE(testing::PrintToString(line));
    const ImageSize size = *ReadImageSize(PictureBytes(line[0]));
    const CropPlan plan = PlanCenterCrop(size, atoi(line[1].c_str()), atoi(line[2].c_str()));
    const std::vector<uint8_t> bytes = BytesOf(SampleOf(line[0], plan, ChannelScale()));
    EXPECT_EQ(Crc(bytes.data(), bytes.size()), line[3]);
  }
}

TEST(ImageScale, EveryProcessorGivesTheSameBits) {
  SampleRandom random(7);
  for (int i = 0; i < 60; ++i) {
    const CropPlan plan =
        PlanRandomCrop({250, 180}, 1 + static_cast<int>(random.Below(120)), random);
    SCOPED_TRACE(i);
    EXPECT_EQ(SampleOf("large.jpg", plan, kImageNetScale, PlainImageKernels()),
              SampleOf("large.jpg", plan, kImageNetScale));
  }
}

TEST(ImageScale, AllWeightsOfAPixelAddUpToOne) {
  ResampleAxis axis;
  for (const auto& [source, target] :
       {std::pair{500, 224}, {3, 224}, {1, 7}, {224, 224}, {4000, 3}}) {
    FillResampleAxis(source, target, 0, target, &axis);
    EXPECT_EQ(axis.begin, 0);
    EXPECT_EQ(axis.end, source);
    for (int i = 0; i < target; ++i) {
      const auto begin = axis.weights.begin() + static_cast<ptrdiff_t>(i) * axis.taps;
      EXPECT_NEAR(std::accumulate(begin, begin + axis.taps, 0.0), 1 << kResampleBits, axis.taps);
    }
  }
}

// Moments of torchvision's draws, to four digits. The seed is fixed, so this passes or not for
// ever.
TEST(ImageCrop, PartsAreDistributedAsTorchvisions) {
  constexpr int kDraws = 100000;
  for (const auto& line : ExpectedLines("crops")) {
    SCOPED_TRACE(testing::PrintToString(line));
    const ImageSize size = {atoi(line[0].c_str()), atoi(line[1].c_str())};
    SampleRandom random(3);
    std::array<double, 4> sums = {};
    int flips = 0;
    for (int i = 0; i < kDraws; ++i) {
      const CropPlan plan = PlanRandomCrop(size, 8, random);
      const PixelBox& box = plan.source;
      ASSERT_TRUE(box.left >= 0 && box.top >= 0 && box.width >= 1 && box.height >= 1);
      ASSERT_TRUE(box.left + box.width <= size.width && box.top + box.height <= size.height);
      const int across = size.width - box.width;
      const int down = size.height - box.height;
      sums[0] += static_cast<double>(box.width) * box.height / (size.width * size.height);
      sums[1] += std::log(static_cast<double>(box.width) / box.height);
      sums[2] += across > 0 ? static_cast<double>(box.left) / across : 0.5;
      sums[3] += down > 0 ? static_cast<double>(box.top) / down : 0.5;
      flips += plan.flip ? 1 : 0;
    }
    // Deviations of such means are at most 0.5 / sqrt(draws); both sides have one.
    for (size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(sums[i] / kDraws, strtod(line[i + 2].c_str(), nullptr), 0.006) << i;
    }
    EXPECT_NEAR(static_cast<double>(flips) / kDraws, 0.5, 0.006);
  }
}

TEST(ImageCrop, APictureThatIsALineStillGivesAPart) {
  SampleRandom random(1);
  for (const ImageSize& size : {ImageSize{1, 1000}, {1000, 1}, {1, 1}, {65500, 1}}) {
    for (int i = 0; i < 100; ++i) {
      const PixelBox box = PlanRandomCrop(size, 8, random).source;
      EXPECT_TRUE(box.width >= 1 && box.height >= 1);
      EXPECT_TRUE(box.left + box.width <= size.width && box.top + box.height <= size.height);
    }
  }
  const CropPlan plan = PlanCenterCrop({65500, 1}, 256, 224);
  EXPECT_EQ(plan.width, 256 * 65500);
  EXPECT_EQ(plan.window.top, 16);
}

}  // namespace
}  // namespace ddprun
