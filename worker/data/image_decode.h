// Pictures from memory to pixels: JPEG (libjpeg-turbo) and PNG (libpng), whatever their colours, as
// Pillow's open(…).convert("RGB") gives them, byte for byte. A part of a picture may be asked for;
// the rest of it is then decoded only as far as the format needs, and the pixels are the same.
//
// Grey, palette and CMYK (Adobe's inverted one) become RGB, transparency is left out, of 16 bits
// the upper eight count. The orientation of EXIF data is not applied.
// Stateless; any thread, with an RgbxImage of its own. Errors are INVALID_ARGUMENT and say what is
// wrong with the bytes; the caller adds the file's name. A JPEG whose picture data is damaged or
// ends early is an error, where Pillow may only warn; superfluous bytes between its parts are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

// More is refused before anything is allocated: a few bytes can claim any size. 512 MiB of pixels.
inline constexpr int64_t kImagePixelsMax = int64_t{1} << 27;
// libjpeg's own bound; for PNG too, so that sizes computed from it fit in an int.
inline constexpr int kImageSideMax = 65500;
// Scans of a progressive JPEG: each costs a pass over the whole picture, however few bytes it has.
inline constexpr int kJpegScansMax = 500;

struct ImageSize {
  int width = 0;
  int height = 0;
  bool operator==(const ImageSize&) const = default;
};

struct PixelBox {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  bool operator==(const PixelBox&) const = default;
};

// Four bytes a pixel: red, green, blue, and one that means nothing (a vector register holds four
// evenly). Reused from picture to picture, so that memory is asked for rarely.
class RgbxImage {
 public:
  int width() const { return box_.width; }
  int height() const { return box_.height; }
  // Behind each row lie at least kSlackBytes more that may be read, and below the last row another.
  const uint8_t* row(int y) const { return bytes_.data() + offset_ + stride_ * y; }
  static constexpr size_t kSlackBytes = 32;

  // For decoders: room for `rows` of `row_pixels`, then what part of it is the picture.
  uint8_t* Reserve(int rows, int row_pixels);
  size_t stride() const { return stride_; }
  void SetBox(const PixelBox& box);

 private:
  PixelBox box_;
  size_t stride_ = 0;
  size_t offset_ = 0;
  std::vector<uint8_t> bytes_;
};

// Size of the picture, from its first bytes; `bytes` may be cut anywhere behind them.
absl::StatusOr<ImageSize> ReadImageSize(std::string_view bytes,
                                        int64_t pixels_max = kImagePixelsMax);

// REQUIRES: `box` lies inside the picture, and is not empty.
absl::Status DecodeImage(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                         int64_t pixels_max = kImagePixelsMax);

}  // namespace ddprun
