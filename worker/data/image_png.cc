// PNG through libpng. Rows are decoded from the first to the last one of the box (an interlaced
// picture wholly), since each is stored as the difference to the one above.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/data/image_codecs.h"

namespace ddprun {
namespace {

// libpng leaves a function that failed by longjmp: see JpegReader.
class PngReader {
 public:
  PngReader(std::string_view bytes, int64_t pixels_max) : bytes_(bytes), pixels_max_(pixels_max) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, OnWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  absl::StatusOr<ImageSize> ReadHeader() {
    if (info_ == nullptr) return absl::ResourceExhaustedError("libpng got no memory");
    if (!TryHeader()) return Error();
    const int64_t width = png_get_image_width(png_, info_);
    const int64_t height = png_get_image_height(png_, info_);
    absl::Status checked = CheckImageSize(width, height, pixels_max_);
    if (!checked.ok()) return checked;
    return ImageSize{static_cast<int>(width), static_cast<int>(height)};
  }

  absl::Status Decode(const PixelBox& box, const ImageSize& size, RgbxImage* image) {
    if (!TryStart()) return Error();
    if (png_get_rowbytes(png_, info_) != static_cast<size_t>(size.width) * 4) {
      return absl::InternalError("a PNG row does not have four bytes a pixel");
    }
    if (passes_ > 1) {
      uint8_t* const rows = image->Reserve(size.height, size.width);
      if (!TryInterlaced(size, rows, image->stride())) return Error();
      image->SetBox(box);
    } else {
      uint8_t* const rows = image->Reserve(box.height, size.width);
      if (!TryRows(box, rows, image->stride())) return Error();
      image->SetBox({box.left, 0, box.width, box.height});
    }
    return absl::OkStatus();
  }

 private:
  bool TryHeader() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, OnRead);
    png_read_info(png_, info_);
    return true;
  }

  // Whatever the file has, rows come with four bytes a pixel. Alpha stays in the fourth, unused.
  bool TryStart() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_strip_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_gray_to_rgb(png_);
    png_set_filler(png_, 0xff, PNG_FILLER_AFTER);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool TryRows(const PixelBox& box, uint8_t* rows, size_t stride) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    for (int y = 0; y < box.top; ++y) png_read_row(png_, rows, nullptr);
    for (int y = 0; y < box.height; ++y) {
      png_read_row(png_, rows + stride * static_cast<size_t>(y), nullptr);
    }
    return true;
  }

  bool TryInterlaced(const ImageSize& size, uint8_t* rows, size_t stride) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    for (int pass = 0; pass < passes_; ++pass) {
      for (int y = 0; y < size.height; ++y) {
        png_read_row(png_, rows + stride * static_cast<size_t>(y), nullptr);
      }
    }
    return true;
  }

  absl::Status Error() const {
    return absl::InvalidArgumentError(absl::StrCat("is no whole PNG file (", message_, ")"));
  }

  [[noreturn]] static void OnError(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngReader*>(png_get_error_ptr(png));
    snprintf(self->message_, sizeof(self->message_), "%s", message);
    png_longjmp(png, 1);
  }
  static void OnWarning(png_structp, png_const_charp) {}
  static void OnRead(png_structp png, png_bytep out, png_size_t count) {
    auto* const self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->bytes_.size()) png_error(png, "it ends early");
    memcpy(out, self->bytes_.data(), count);
    self->bytes_.remove_prefix(count);
  }

  std::string_view bytes_;  // what is left to read
  const int64_t pixels_max_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  char message_[200] = {};
};

}  // namespace

bool LooksLikePng(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1a\n");
}

absl::StatusOr<ImageSize> ReadPngSize(std::string_view bytes, int64_t pixels_max) {
  return PngReader(bytes, pixels_max).ReadHeader();
}

absl::Status DecodePng(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                       int64_t pixels_max) {
  PngReader reader(bytes, pixels_max);
  const absl::StatusOr<ImageSize> size = reader.ReadHeader();
  if (!size.ok()) return size.status();
  if (!Inside(box, *size)) return absl::InternalError("the box lies outside of the picture");
  return reader.Decode(box, *size, image);
}

}  // namespace ddprun
