// The two formats behind image_decode.h. Each has its C library in one file, with that library's
// way of reporting errors; see image_decode.h for what the functions promise.
#pragma once

#include <string_view>

#include "worker/data/image_decode.h"

namespace ddprun {

bool LooksLikeJpeg(std::string_view bytes);
absl::StatusOr<ImageSize> ReadJpegSize(std::string_view bytes, int64_t pixels_max);
absl::Status DecodeJpeg(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                        int64_t pixels_max);

bool LooksLikePng(std::string_view bytes);
absl::StatusOr<ImageSize> ReadPngSize(std::string_view bytes, int64_t pixels_max);
absl::Status DecodePng(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                       int64_t pixels_max);

// What both check of a picture's header.
absl::Status CheckImageSize(int64_t width, int64_t height, int64_t pixels_max);
bool Inside(const PixelBox& box, const ImageSize& size);

}  // namespace ddprun
