#include "worker/data/image_decode.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/data/image_codecs.h"

namespace ddprun {
namespace {

// A buffer that one huge picture has made larger is given back when the next one is of usual size.
constexpr size_t kKeptBytes = size_t{64} << 20;

absl::Status UnknownFormat(std::string_view bytes) {
  if (bytes.empty()) return absl::InvalidArgumentError("is empty (0 bytes)");
  return absl::InvalidArgumentError(
      absl::StrCat("is neither JPEG nor PNG (it begins with bytes ",
                   absl::BytesToHexString(std::string(bytes.substr(0, 8))), ")"));
}

}  // namespace

uint8_t* RgbxImage::Reserve(int rows, int row_pixels) {
  stride_ = static_cast<size_t>(row_pixels) * 4;
  offset_ = 0;
  const size_t needed = stride_ * (static_cast<size_t>(rows) + 1) + kSlackBytes;
  if (bytes_.size() > kKeptBytes && needed <= kKeptBytes) std::vector<uint8_t>().swap(bytes_);
  if (bytes_.size() < needed) bytes_.resize(needed);
  return bytes_.data();
}

void RgbxImage::SetBox(const PixelBox& box) {
  box_ = box;
  offset_ = stride_ * static_cast<size_t>(box.top) + static_cast<size_t>(box.left) * 4;
}

absl::Status CheckImageSize(int64_t width, int64_t height, int64_t pixels_max) {
  const bool sides = width >= 1 && height >= 1 && width <= kImageSideMax && height <= kImageSideMax;
  if (sides && width * height <= pixels_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("claims to have ", width, " x ", height, " pixels; accepted are sides up to ",
                   kImageSideMax, " and ", pixels_max, " pixels in all"));
}

bool Inside(const PixelBox& box, const ImageSize& size) {
  return box.left >= 0 && box.top >= 0 && box.width >= 1 && box.height >= 1 &&
         box.width <= size.width - box.left && box.height <= size.height - box.top;
}

absl::StatusOr<ImageSize> ReadImageSize(std::string_view bytes, int64_t pixels_max) {
  if (LooksLikeJpeg(bytes)) return ReadJpegSize(bytes, pixels_max);
  if (LooksLikePng(bytes)) return ReadPngSize(bytes, pixels_max);
  return UnknownFormat(bytes);
}

absl::Status DecodeImage(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                         int64_t pixels_max) {
  if (LooksLikeJpeg(bytes)) return DecodeJpeg(bytes, box, image, pixels_max);
  if (LooksLikePng(bytes)) return DecodePng(bytes, box, image, pixels_max);
  return UnknownFormat(bytes);
}

}  // namespace ddprun
