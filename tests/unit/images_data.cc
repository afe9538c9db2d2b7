#include "tests/unit/images_data.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_format.h"

namespace ddprun {

std::string PictureDir() {
  const char* const source = getenv("DDPRUN_SOURCE");
  EXPECT_NE(source, nullptr) << "set DDPRUN_SOURCE to the repository";
  return std::string(source == nullptr ? "." : source) + "/tests/data/images";
}

std::string PictureBytes(const std::string& name) {
  std::ifstream file(PictureDir() + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::vector<std::string>> ExpectedLines(const std::string& kind) {
  std::ifstream file(PictureDir() + "/expected.txt");
  std::vector<std::vector<std::string>> lines;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != kind) continue;
    lines.emplace_back(std::istream_iterator<std::string>(words),
                       std::istream_iterator<std::string>());
  }
  EXPECT_FALSE(lines.empty()) << kind;
  return lines;
}

std::string Crc(const void* data, size_t size) {
  return absl::StrFormat("%08x",
                         crc32(0, static_cast<const Bytef*>(data), static_cast<uInt>(size)));
}

std::vector<uint8_t> RgbOf(const RgbxImage& image) {
  std::vector<uint8_t> bytes;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      bytes.insert(bytes.end(), image.row(y) + x * 4, image.row(y) + x * 4 + 3);
    }
  }
  return bytes;
}

}  // namespace ddprun
