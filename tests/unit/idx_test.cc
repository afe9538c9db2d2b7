// IDX files and ValidateData: every fault of a data file is one error that names the file (issue 3,
// "Bad input").
#include "common/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/config/train_config.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

std::string IdxBytes(const std::vector<uint32_t>& shape, size_t bytes, uint8_t fill = 1) {
  std::string out = {0, 0, 8, static_cast<char>(shape.size())};
  for (uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(extent >> shift));
  }
  out.append(bytes, static_cast<char>(fill));
  return out;
}

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class IdxTest : public ::testing::Test {
 protected:
  IdxTest() {
    std::string pattern = ::testing::TempDir() + "idx_test_XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~IdxTest() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string ReadError(const std::string& name, const std::string& bytes, int dimensions) {
    const auto result = ReadIdx(Write(name, bytes), dimensions);
    return result.ok() ? "no error" : std::string(result.status().message());
  }
  // A small whole data set of 28 x 28 images.
  void WriteSet(uint32_t train, uint32_t test) {
    Write("train-images-idx3-ubyte.gz", Gzip(IdxBytes({train, 28, 28}, train * 784)));
    Write("train-labels-idx1-ubyte.gz", Gzip(IdxBytes({train}, train)));
    Write("t10k-images-idx3-ubyte.gz", Gzip(IdxBytes({test, 28, 28}, test * 784)));
    Write("t10k-labels-idx1-ubyte.gz", Gzip(IdxBytes({test}, test)));
  }
  std::string ValidateError(int world_size, const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> all = {"data.dir=" + dir_};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const auto config = ParseTrainConfig(
        "[model]\nname='simple_cnn'\n[data]\nkind='idx'\nbatch_size=4\n[train]\nepochs=1\n",
        "t.cfg", all);
    EXPECT_TRUE(config.ok()) << config.status();
    const absl::Status status = ValidateData(*config, world_size);
    return status.ok() ? "no error" : std::string(status.message());
  }
  std::string dir_;
};

TEST_F(IdxTest, PlainAndGzippedFilesGiveTheSameArray) {
  const std::string bytes = IdxBytes({3, 2, 2}, 12, 7);
  const auto plain = ReadIdx(Write("a", bytes), 3);
  const auto gzipped = ReadIdx(Write("a.gz", Gzip(bytes)), 3);
  const auto members = ReadIdx(Write("b.gz", Gzip(bytes.substr(0, 9)) + Gzip(bytes.substr(9))), 3);
  for (const auto* array : {&plain, &gzipped, &members}) {
    ASSERT_TRUE(array->ok()) << array->status();
    EXPECT_EQ((*array)->shape, (std::vector<int64_t>{3, 2, 2}));
    EXPECT_EQ((*array)->data, std::vector<uint8_t>(12, 7));
  }
}

TEST_F(IdxTest, EveryFaultOfAFileIsNamed) {
  const std::string good = IdxBytes({3, 2, 2}, 12);
  const std::string gzip = Gzip(good);
  EXPECT_THAT(ReadError("a.gz", good, 3),
              HasSubstr("a.gz: not a gzip file though its name ends in .gz"));
  EXPECT_THAT(ReadError("b.gz", "", 3), HasSubstr("b.gz: not a gzip file"));
  EXPECT_THAT(ReadError("c.gz", gzip.substr(0, gzip.size() - 9), 3), HasSubstr("c.gz: truncated"));
  EXPECT_THAT(ReadError("d.gz", gzip.substr(0, gzip.size() - 2), 3), HasSubstr("d.gz: truncated"));
  std::string crc = gzip;
  crc[crc.size() - 6] = static_cast<char>(crc[crc.size() - 6] ^ 1);
  EXPECT_THAT(ReadError("e.gz", crc, 3),
              HasSubstr("e.gz: damaged gzip data (incorrect data check)"));
  EXPECT_THAT(ReadError("f", good.substr(0, 20), 3), HasSubstr("f: truncated"));
  EXPECT_THAT(ReadError("g", good + "x", 3), HasSubstr("g: has bytes after"));
  EXPECT_THAT(ReadError("h", "PNG!0000", 3), HasSubstr("h: not an IDX file"));
  EXPECT_THAT(ReadError("i", std::string("\0\0\x0d\x03", 4) + std::string(20, 'x'), 3),
              HasSubstr("element type 0x0d"));
  EXPECT_THAT(ReadError("j", good, 1), HasSubstr("j: has 3 dimensions, expected 1"));
  EXPECT_THAT(ReadError("k", IdxBytes({0xffffffff, 0xffffffff, 1}, 0), 3),
              HasSubstr("k: IDX header announces more"));
  EXPECT_THAT(ReadError("l", IdxBytes({1u << 30, 1, 1}, 0), 3),
              HasSubstr("l: truncated: its IDX header announces"));
  EXPECT_THAT(ReadError("m.gz", Gzip(IdxBytes({1u << 30, 1, 1}, 0)), 3),
              HasSubstr("m.gz: truncated"));
  EXPECT_THAT(ReadIdx(dir_ + "/none.gz", 3).status().message(), HasSubstr("none.gz: cannot open"));
  EXPECT_THAT(ReadIdx(dir_, 3).status().message(), HasSubstr("not a regular file"));
}

TEST_F(IdxTest, NoPrefixOfAFileIsTakenForAWholeOne) {
  const std::string gzip = Gzip(IdxBytes({5, 4, 4}, 80));
  for (size_t size = 0; size < gzip.size(); ++size) {
    EXPECT_NE(ReadError("cut.gz", gzip.substr(0, size), 3), "no error") << size;
  }
}

TEST_F(IdxTest, ValidateDataNamesTheFileAndTheFix) {
  EXPECT_THAT(ValidateError(1), HasSubstr("train-images-idx3-ubyte[.gz]: no such data file"));
  WriteSet(100, 10);
  EXPECT_EQ(ValidateError(4), "no error");
  EXPECT_THAT(ValidateError(101), HasSubstr("holds 100 samples for 101 ranks; start at most 100"));
  EXPECT_THAT(ValidateError(26),
              HasSubstr("make batch_size or --nproc smaller, or set drop_last = false"));
  EXPECT_EQ(ValidateError(26, {"data.drop_last=false"}), "no error");
  Write("t10k-labels-idx1-ubyte.gz", Gzip(IdxBytes({9}, 9)));
  EXPECT_THAT(ValidateError(1), HasSubstr("holds 10 images, but "));
  EXPECT_EQ(ValidateError(1, {"train.evaluate=false"}), "no error");
  Write("train-labels-idx1-ubyte.gz", Gzip(IdxBytes({100}, 100, 12)));
  EXPECT_THAT(ValidateError(1),
              HasSubstr("label 12 of sample 0, but model simple_cnn has 10 classes"));
  Write("train-labels-idx1-ubyte.gz", Gzip(IdxBytes({100}, 100, 4)));
  Write("t10k-labels-idx1-ubyte.gz", Gzip(IdxBytes({10}, 10, 5)));
  EXPECT_THAT(ValidateError(1),
              HasSubstr("t10k-labels-idx1-ubyte.gz: label 5 of sample 0, but the training data "
                        "have 5 classes (labels 0 to 4); set [model] classes"));
  EXPECT_EQ(ValidateError(1, {"model.classes=6"}), "no error");
  EXPECT_THAT(
      ValidateError(1, {"model.classes=3"}),
      HasSubstr("train-labels-idx1-ubyte.gz: label 4 of sample 0, but [model] classes is 3"));
  Write("train-images-idx3-ubyte.gz", Gzip(IdxBytes({100, 8, 8}, 6400)));
  EXPECT_THAT(ValidateError(1), HasSubstr("images are 8 x 8, but model simple_cnn takes 28 x 28"));
  Write("train-images-idx3-ubyte.gz", Gzip(IdxBytes({0, 28, 28}, 0)));
  Write("train-labels-idx1-ubyte.gz", Gzip(IdxBytes({0}, 0)));
  EXPECT_THAT(ValidateError(1), HasSubstr("holds no samples"));
}

TEST_F(IdxTest, FashionMnistIsWhole) {
  const std::string dir = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const auto files = FindIdxFiles(dir, Split::kTrain);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto split = ReadIdxSplit(*files);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->images.shape, (std::vector<int64_t>{60000, 28, 28}));
}

}  // namespace
}  // namespace ddprun
