// Decoding: every kind of JPEG and PNG gives Pillow's RGB, whole or in part; what is no picture is
// one error that says why (issue 6, "Bad input").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <jpeglib.h>

#include <cstdlib>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/unit/images_data.h"
#include "worker/data/image_decode.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string DecodeError(const std::string& bytes, int64_t pixels_max = kImagePixelsMax) {
  const auto size = ReadImageSize(bytes, pixels_max);
  if (!size.ok()) return std::string(size.status().message());
  RgbxImage image;
  const absl::Status status =
      DecodeImage(bytes, {0, 0, size->width, size->height}, &image, pixels_max);
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(ImageDecode, EveryModeGivesPillowsRgb) {
  RgbxImage image;  // one for all, as a loader's thread has it
  for (const auto& line : ExpectedLines("decoded")) {
    SCOPED_TRACE(line[0]);
    const std::string bytes = PictureBytes(line[0]);
    const auto size = ReadImageSize(bytes);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(absl::StrCat(size->width, " ", size->height), line[1] + " " + line[2]);
    ASSERT_TRUE(DecodeImage(bytes, {0, 0, size->width, size->height}, &image).ok());
    const std::vector<uint8_t> rgb = RgbOf(image);
    EXPECT_EQ(Crc(rgb.data(), rgb.size()), line[3]);
  }
}

void ExpectPartsLikeTheWhole(const std::string& bytes) {
  std::mt19937 random(1);
  const auto below = [&](int count) {
    return static_cast<int>(random() % static_cast<uint32_t>(count));
  };
  const ImageSize size = *ReadImageSize(bytes);
  RgbxImage whole;
  ASSERT_TRUE(DecodeImage(bytes, {0, 0, size.width, size.height}, &whole).ok());
  RgbxImage part;
  for (int i = 0; i < 40; ++i) {
    const int left = below(size.width);
    const int top = below(size.height);
    const PixelBox box = {left, top, 1 + below(size.width - left), 1 + below(size.height - top)};
    ASSERT_TRUE(DecodeImage(bytes, box, &part).ok());
    ASSERT_EQ(part.width(), box.width);
    ASSERT_EQ(part.height(), box.height);
    for (int y = 0; y < box.height; ++y) {
      for (int x = 0; x < box.width; ++x) {
        const uint8_t* const got = part.row(y) + x * 4;
        const uint8_t* const wanted = whole.row(top + y) + (left + x) * 4;
        ASSERT_TRUE(std::equal(got, got + 3, wanted)) << left + x << ", " << top + y;
      }
    }
  }
}

TEST(ImageDecode, APartHasThePixelsOfTheWhole) {
  for (const auto& line : ExpectedLines("decoded")) {
    SCOPED_TRACE(line[0]);
    ExpectPartsLikeTheWhole(PictureBytes(line[0]));
  }
}

// Without its last scans a progressive picture is coarse; libjpeg would smooth a part otherwise
// than the whole.
TEST(ImageDecode, APartOfACoarseProgressivePictureHasThePixelsOfTheWhole) {
  const std::string bytes = PictureBytes("large_progressive.jpg");
  size_t end = bytes.size();
  for (int scans = 0; scans < 4; ++scans) end = bytes.rfind("\xff\xda", end - 1);
  // The tables of a scan come before it.
  end = bytes.rfind("\xff\xc4", end - 1);
  ExpectPartsLikeTheWhole(bytes.substr(0, end) + "\xff\xd9");
}

// Adobe's inks, with their colours turned into luma and chroma (YCCK): Pillow writes none.
TEST(ImageDecode, AdobesYcckBecomesRgb) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = info.image_height = 16;
  info.input_components = 4;
  info.in_color_space = JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row;
  for (int x = 0; x < 16; ++x) row.insert(row.end(), {200, 100, 50, 255});  // inverted: no black
  for (int y = 0; y < 16; ++y) {
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  RgbxImage image;
  ASSERT_TRUE(DecodeImage({reinterpret_cast<char*>(bytes), size}, {4, 4, 8, 8}, &image).ok());
  free(bytes);
  EXPECT_NEAR(image.row(3)[12], 200, 3);
  EXPECT_NEAR(image.row(3)[13], 100, 3);
  EXPECT_NEAR(image.row(3)[14], 50, 3);
}

TEST(ImageDecode, WhatIsNoPictureIsNamed) {
  EXPECT_EQ(DecodeError(""), "is empty (0 bytes)");
  EXPECT_EQ(DecodeError("GIF89a…"),
            "is neither JPEG nor PNG (it begins with bytes 474946383961e280)");
  EXPECT_THAT(DecodeError("\xff\xd8\xff"), HasSubstr("is no whole JPEG file ("));
  EXPECT_THAT(DecodeError("\x89PNG\r\n\x1a\n"), HasSubstr("is no whole PNG file (it ends early)"));
}

TEST(ImageDecode, ACutFileIsAnError) {
  for (const char* name :
       {"rgb_420.jpg", "progressive.jpg", "grey.jpg", "rgb.png", "interlaced.png"}) {
    SCOPED_TRACE(name);
    const std::string bytes = PictureBytes(name);
    ASSERT_EQ(DecodeError(bytes), "no error");
    for (const double part : {0.05, 0.3, 0.6, 0.95}) {
      const auto kept = static_cast<size_t>(static_cast<double>(bytes.size()) * part);
      EXPECT_THAT(DecodeError(bytes.substr(0, kept)),
                  HasSubstr(bytes[0] == '\x89' ? "is no whole PNG file" : "is no whole JPEG file"));
    }
  }
}

TEST(ImageDecode, DamageInsideIsAnError) {
  std::string png = PictureBytes("rgb.png");
  png[png.size() / 2] = static_cast<char>(png[png.size() / 2] ^ 0x55);
  EXPECT_THAT(DecodeError(png), HasSubstr("is no whole PNG file"));
  // A marker where none may be: the picture data end in the middle.
  std::string jpeg = PictureBytes("large.jpg");
  jpeg.replace(jpeg.size() / 2, 2, "\xff\xd9");
  EXPECT_THAT(DecodeError(jpeg), HasSubstr("is no whole JPEG file (Corrupt JPEG data"));
}

// Pillow reads such files, and data sets have them.
TEST(ImageDecode, SuperfluousBytesAreNoError) {
  std::string jpeg = PictureBytes("rgb_420.jpg");
  EXPECT_EQ(DecodeError(jpeg + "trailing"), "no error");
  jpeg.insert(jpeg.size() - 2, 3, '\x11');  // before the end marker
  EXPECT_EQ(DecodeError(jpeg), "no error");
}

TEST(ImageDecode, AClaimedSizeIsCheckedBeforeMemoryIsTaken) {
  std::string png = PictureBytes("rgb.png");
  EXPECT_THAT(DecodeError(png, 67 * 41 - 1), HasSubstr("claims to have 67 x 41 pixels"));
  std::string jpeg = PictureBytes("rgb_444.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  EXPECT_THAT(DecodeError(jpeg), AllOf(HasSubstr("claims to have 65500 x 65500 pixels"),
                                       HasSubstr("134217728 pixels in all")));
}

TEST(ImageDecode, AProgressiveBombIsRefused) {
  const std::string bytes = PictureBytes("progressive.jpg");
  // The first scan again and again; each costs a pass over the picture.
  const size_t scan = bytes.find("\xff\xda");
  const size_t behind = bytes.find("\xff\xc4", scan);  // tables of the next one
  ASSERT_NE(behind, std::string::npos);
  std::string bomb = bytes;
  for (int i = 0; i < kJpegScansMax; ++i) bomb.insert(behind, bytes.substr(scan, behind - scan));
  EXPECT_THAT(DecodeError(bomb), HasSubstr("more than 500 scans"));
}

TEST(ImageDecode, ABoxOutsideIsOurOwnMistake) {
  RgbxImage image;
  for (const char* name : {"rgb.png", "rgb_444.jpg"}) {
    for (const PixelBox& box :
         {PixelBox{60, 0, 8, 1}, PixelBox{-1, 0, 1, 1}, PixelBox{0, 0, 0, 1}}) {
      EXPECT_EQ(DecodeImage(PictureBytes(name), box, &image).code(), absl::StatusCode::kInternal);
    }
  }
}

}  // namespace
}  // namespace ddprun
