// JPEG through libjpeg-turbo, with the slow accurate transform and smooth chroma that Pillow uses.
//
// Of a box, rows above it are skipped, rows below it never reached, and columns beside it (but for
// a margin that makes the chroma of the box's own columns right) neither transformed nor coloured.
#include <cstddef>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs it
// The order matters.
#include <jpeglib.h>
//
#include <jerror.h>

#include <algorithm>
#include <csetjmp>

#include "absl/strings/str_cat.h"
#include "worker/data/image_codecs.h"

namespace ddprun {
namespace {

// Smooth chroma looks one chroma sample to each side, which is at most four pixels away.
constexpr int kMarginPixels = 8;

// Warnings after which the picture is not what it was when it was saved. Others (superfluous bytes,
// odd headers) do no harm.
bool MeansDamage(int code) {
  switch (code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      return true;
    default:
      return false;
  }
}

// A decompressor and where its errors go. libjpeg leaves a function that failed by longjmp, so the
// functions that call setjmp hold nothing that would have to be destroyed.
class JpegReader {
 public:
  JpegReader(std::string_view bytes, int64_t pixels_max) : bytes_(bytes), pixels_max_(pixels_max) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = OnError;
    errors_.emit_message = OnMessage;
    progress_.progress_monitor = OnProgress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  absl::StatusOr<ImageSize> ReadHeader() {
    if (!TryHeader()) return Error();
    absl::Status checked = CheckImageSize(info_.image_width, info_.image_height, pixels_max_);
    if (!checked.ok()) return checked;
    return ImageSize{static_cast<int>(info_.image_width), static_cast<int>(info_.image_height)};
  }

  absl::Status Decode(const PixelBox& box, RgbxImage* image) {
    const bool ink = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = ink ? JCS_CMYK : JCS_EXT_RGBX;
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    // Of a progressive picture without its last scans, it would make the pixels of a box other than
    // those of the whole.
    info_.do_block_smoothing = FALSE;
    JDIMENSION left = static_cast<JDIMENSION>(std::max(0, box.left - kMarginPixels));
    JDIMENSION columns =
        std::min(static_cast<JDIMENSION>(box.left + box.width + kMarginPixels), info_.image_width) -
        left;
    if (!TryStart(&left, &columns)) return Error();
    uint8_t* const rows = image->Reserve(box.height, static_cast<int>(columns));
    if (!TryRows(box, rows, image->stride())) return Error();
    if (ink) InkToLight(rows, static_cast<size_t>(columns) * static_cast<size_t>(box.height));
    image->SetBox({box.left - static_cast<int>(left), 0, box.width, box.height});
    return absl::OkStatus();
  }

 private:
  bool TryHeader() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  // Begins with the columns asked for; says which ones come (the left one goes to a block's edge).
  bool TryStart(JDIMENSION* left, JDIMENSION* columns) {
    if (setjmp(jump_) != 0) return false;
    info_.progress = &progress_;
    jpeg_start_decompress(&info_);
    if (*columns < info_.output_width) jpeg_crop_scanline(&info_, left, columns);
    return true;
  }

  bool TryRows(const PixelBox& box, uint8_t* rows, size_t stride) {
    if (setjmp(jump_) != 0) return false;
    if (box.top > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(box.top));
    for (int y = 0; y < box.height;) {
      JSAMPROW batch[4];
      int count = 0;
      for (; count < 4 && y + count < box.height; ++count) {
        batch[count] = rows + stride * static_cast<size_t>(y + count);
      }
      y += static_cast<int>(jpeg_read_scanlines(&info_, batch, static_cast<JDIMENSION>(count)));
    }
    jpeg_abort_decompress(&info_);
    return true;
  }

  // CMYK as Adobe's programs store it: 255 is no ink.
  static void InkToLight(uint8_t* pixels, size_t count) {
    for (size_t i = 0; i < count; ++i, pixels += 4) {
      const int light = pixels[3];
      for (int channel = 0; channel < 3; ++channel) {
        // Of the light, what the ink takes away, rounded: ink · light / 255.
        const int product = (255 - pixels[channel]) * light + 128;
        pixels[channel] = static_cast<uint8_t>(light - ((product + (product >> 8)) >> 8));
      }
    }
  }

  absl::Status Error() const {
    return absl::InvalidArgumentError(absl::StrCat("is no whole JPEG file (", message_, ")"));
  }

  static JpegReader* Self(j_common_ptr info) { return static_cast<JpegReader*>(info->client_data); }
  [[noreturn]] static void OnError(j_common_ptr info) {
    info->err->format_message(info, Self(info)->message_);
    longjmp(Self(info)->jump_, 1);
  }
  static void OnMessage(j_common_ptr info, int level) {
    if (level < 0 && MeansDamage(info->err->msg_code)) OnError(info);
  }
  static void OnProgress(j_common_ptr info) {
    JpegReader* const self = Self(info);
    if (self->info_.input_scan_number <= kJpegScansMax) return;
    snprintf(self->message_, sizeof(self->message_), "it has more than %d scans", kJpegScansMax);
    longjmp(self->jump_, 1);
  }

  const std::string_view bytes_;
  const int64_t pixels_max_;
  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  jmp_buf jump_ = {};
  char message_[JMSG_LENGTH_MAX] = {};
};

}  // namespace

bool LooksLikeJpeg(std::string_view bytes) {
  return bytes.starts_with("\xff\xd8\xff");
}

absl::StatusOr<ImageSize> ReadJpegSize(std::string_view bytes, int64_t pixels_max) {
  return JpegReader(bytes, pixels_max).ReadHeader();
}

absl::Status DecodeJpeg(std::string_view bytes, const PixelBox& box, RgbxImage* image,
                        int64_t pixels_max) {
  JpegReader reader(bytes, pixels_max);
  const absl::StatusOr<ImageSize> size = reader.ReadHeader();
  if (!size.ok()) return size.status();
  if (!Inside(box, *size)) return absl::InternalError("the box lies outside of the picture");
  return reader.Decode(box, image);
}

}  // namespace ddprun
