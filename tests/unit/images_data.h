// The pictures of tests/data/images, and what Pillow and torchvision make of them (expected.txt
// there; make_images.py says what its lines mean).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/data/image_decode.h"

namespace ddprun {

std::string PictureDir();
std::string PictureBytes(const std::string& name);
// The words behind `kind` of all lines that begin with it.
std::vector<std::vector<std::string>> ExpectedLines(const std::string& kind);

// zlib's crc32 in hex digits.
std::string Crc(const void* data, size_t size);
// Red, green and blue of all rows.
std::vector<uint8_t> RgbOf(const RgbxImage& image);

}  // namespace ddprun
