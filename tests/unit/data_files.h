// Small data files for tests, each in the format of its kind.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ddprun {

class DataFolder {
 public:
  DataFolder() {
    std::string pattern = ::testing::TempDir() + "data_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~DataFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteBytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline void WriteByte(const std::string& path, int64_t offset, uint8_t byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.put(static_cast<char>(byte));
}

// The label is the number of the record modulo 10, pixels are random.
inline void WriteCifar10(const std::string& dir, int records_a_file, int test_records) {
  std::mt19937 random(3);
  const auto write = [&](const std::string& name, int records) {
    std::vector<uint8_t> bytes;
    for (int record = 0; record < records; ++record) {
      bytes.push_back(static_cast<uint8_t>(record % 10));
      for (int i = 0; i < 3072; ++i)
        bytes.push_back(static_cast<uint8_t>(random() >> (8 + i / 1024)));
    }
    WriteBytes(dir + "/" + name, bytes);
  };
  for (int file = 1; file <= 5; ++file)
    write(absl::StrCat("data_batch_", file, ".bin"), records_a_file);
  write("test_batch.bin", test_records);
}

inline std::vector<uint8_t> ReadRecord(const std::string& path, int64_t record) {
  std::vector<uint8_t> bytes(3073);
  std::ifstream file(path, std::ios::binary);
  file.seekg(record * 3073);
  file.read(reinterpret_cast<char*>(bytes.data()), 3073);
  return bytes;
}

// The 32 × 32 window that begins `row`, `column` in the picture, black outside, then mirrored.
inline std::vector<float> Shifted(const std::vector<float>& pixels, int64_t row, int64_t column,
                                  bool flip) {
  std::vector<float> out(pixels.size(), 0);
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < 32; ++y) {
      for (int64_t x = 0; x < 32; ++x) {
        const int64_t from_y = y + row;
        const int64_t from_x = x + column;
        if (from_y < 0 || from_y > 31 || from_x < 0 || from_x > 31) continue;
        const int64_t to_x = flip ? 31 - x : x;
        out[static_cast<size_t>((c * 32 + y) * 32 + to_x)] =
            pixels[static_cast<size_t>((c * 32 + from_y) * 32 + from_x)];
      }
    }
  }
  return out;
}

inline void WriteIdxArray(const std::string& path, const std::vector<uint32_t>& shape,
                          const std::vector<uint8_t>& data) {
  std::vector<uint8_t> out = {0, 0, 8, static_cast<uint8_t>(shape.size())};
  for (uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8)
      out.push_back(static_cast<uint8_t>(extent >> shift));
  }
  out.insert(out.end(), data.begin(), data.end());
  WriteBytes(path, out);
}

// Grey images of 28 × 28 with these labels; `prefix`: train or t10k.
inline void WriteIdxSplit(const std::string& dir, const std::string& prefix,
                          const std::vector<uint8_t>& labels) {
  const auto count = static_cast<uint32_t>(labels.size());
  std::vector<uint8_t> pixels(labels.size() * 784);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 7919 >> 3);
  WriteIdxArray(absl::StrCat(dir, "/", prefix, "-images-idx3-ubyte"), {count, 28, 28}, pixels);
  WriteIdxArray(absl::StrCat(dir, "/", prefix, "-labels-idx1-ubyte"), {count}, labels);
}

inline void WriteTokens(const std::string& path, int token_bytes,
                        const std::vector<uint32_t>& tokens) {
  std::vector<uint8_t> bytes;
  for (uint32_t token : tokens) {
    for (int i = 0; i < token_bytes; ++i) bytes.push_back(static_cast<uint8_t>(token >> (8 * i)));
  }
  WriteBytes(path, bytes);
}

}  // namespace ddprun
