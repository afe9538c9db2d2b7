// The safetensors format: round trip, what Python's reader says, and hostile headers (facts of the
// format in docs/checkpoints.md).
#include "common/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

std::string FileBytes(const std::string& json, const std::string& data, int64_t length = -1) {
  std::string out(8, '\0');
  const uint64_t n = length < 0 ? json.size() : static_cast<uint64_t>(length);
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(n >> (8 * i));
  return out + json + data;
}

std::string ErrorOf(const std::string& bytes) {
  const auto header = ParseSafetensorsHeader(bytes, bytes.size());
  return header.ok() ? "no error" : std::string(header.status().message());
}

std::string Sample() {
  std::vector<TensorInfo> tensors = {
      {"b", "F32", {2, 3}}, {"a", "U8", {3}}, {"c", "I64", {}}, {"empty", "F32", {0, 7}}};
  const std::string header = *BuildSafetensorsHeader(&tensors, {{"step", "7"}});
  std::string data(tensors.back().end, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i);
  return header + data;
}

TEST(SafetensorsTest, RoundTripKeepsNamesShapesDtypesAndMetadata) {
  const std::string bytes = Sample();
  const auto header = ParseSafetensorsHeader(bytes, bytes.size());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_begin % 8, 0u);
  EXPECT_EQ(header->metadata.at("step"), "7");
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "c") << "largest alignment first";
  uint64_t total = 0;
  for (const TensorInfo& tensor : header->tensors) total += tensor.bytes();
  EXPECT_EQ(total, 8u + 24u + 3u);
}

TEST(SafetensorsTest, AFileWithOnlyMetadataRoundTrips) {  // safetensors#601
  std::vector<TensorInfo> none;
  const std::string bytes = *BuildSafetensorsHeader(&none, {{"k", "v"}});
  const auto header = ParseSafetensorsHeader(bytes, bytes.size());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("k"), "v");
}

TEST(SafetensorsTest, EveryBrokenRuleOfTheFormatIsRefused) {
  const std::string t = R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(ErrorOf(FileBytes("{" + t + "}", "0123")), "no error");
  EXPECT_EQ(ErrorOf(FileBytes("{" + t + "}    ", "0123")), "no error");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "shorter than 8 bytes"},
      {"1234567", "shorter than 8 bytes"},
      {FileBytes("{}", "", 100'000'001), "more than 100000000"},
      {FileBytes("{}", "", int64_t{0x7fffffffffffffff}), "more than 100000000"},
      {FileBytes("{}", "", 3), "truncated within its header"},
      {FileBytes("", ""), "does not begin with {"},
      {FileBytes(" {}", ""), "does not begin with {"},
      {FileBytes("[]", ""), "does not begin with {"},
      {FileBytes("{]", ""), "not JSON"},
      {FileBytes("{\"\xff\":1}", ""), "not JSON"},
      {FileBytes("{" + t + "," + t + "}", "0123"), "stands twice"},
      {FileBytes(R"({"__metadata__":{"a":1}})", ""), "is not a string"},
      {FileBytes(R"({"__metadata__":{"a":{"b":"c"}}})", ""), "is not a string"},
      {FileBytes(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "stands twice"},
      {FileBytes(R"({"__metadata__":[]})", ""), "not an object"},
      {FileBytes(R"({"t":1})", ""), "expected dtype, shape"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1]}})", ""), "expected dtype, shape"},
      {FileBytes(R"({"t":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "0123"),
       "unknown dtype"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "0123"),
       "shape holds"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "0123"),
       "shape holds"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                 "0123"),
       "overflows"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "0123"),
       "do not agree"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "0123"),
       "do not agree"},
      {FileBytes(R"({"t":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "0"), "whole bytes"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "01234567"),
       "a hole"},
      {FileBytes("{" + t + R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "0123"),
       "an overlap"},
      {FileBytes("{" + t + "}", "012"), "truncated or has bytes appended"},
      {FileBytes("{" + t + "}", "01234"), "truncated or has bytes appended"},
      {FileBytes(R"({"t":)" + std::string(100000, '['), ""), "nested too deeply"},
  };
  for (const auto& [bytes, expected] : cases) EXPECT_THAT(ErrorOf(bytes), HasSubstr(expected));
}

TEST(SafetensorsTest, FilesOfTorchSaveAreToldFromDamagedOnes) {
  const std::string rest(200, 'x');
  EXPECT_THAT(ErrorOf(absl::StrCat("PK\x03\x04", absl::string_view("\0\0\x08\x08", 4), rest)),
              HasSubstr("torch.save has written it. In Python"));
  EXPECT_THAT(ErrorOf(absl::StrCat("\x80\x02\x8a\nl", rest)), HasSubstr("torch.save has written"));
  EXPECT_THAT(ErrorOf(absl::StrCat("KP\x03\x04", rest)), HasSubstr("its header would be"));
}

TEST(SafetensorsTest, EveryPrefixOfAFileIsRefused) {
  const std::string bytes = Sample();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(ErrorOf(bytes.substr(0, size)), "no error") << size;
  }
}

// Random damage never crashes, and what is accepted lies inside the file (run it under the asan
// preset too).
TEST(SafetensorsTest, FuzzedHeadersAreRefusedOrStayInsideTheFile) {
  constexpr uint32_t kSeed = 20240601;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const std::string sample = Sample();
  const uint64_t header_bytes = ParseSafetensorsHeader(sample, sample.size())->data_begin;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sample;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) bytes[random() % header_bytes] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto header = ParseSafetensorsHeader(bytes, bytes.size());
    if (!header.ok()) continue;
    ++accepted;
    uint64_t position = 0;
    for (const TensorInfo& tensor : header->tensors) {
      EXPECT_EQ(tensor.begin, position);
      position = tensor.end;
    }
    EXPECT_EQ(header->data_begin + position, bytes.size());
  }
  EXPECT_GT(accepted, 0) << "a letter of a name may change";
  EXPECT_LT(accepted, 20000);
}

TEST(SafetensorsTest, PythonReadsWhatWeWriteAndWeReadWhatPythonWrites) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "DDPRUN_PYTHON is not set";
  if (std::system(absl::StrCat(python, " -c 'import numpy, safetensors' 2>/dev/null").c_str()) !=
      0) {
    GTEST_SKIP() << python << " has no safetensors";
  }
  std::string pattern = ::testing::TempDir() + "safetensors_test_XXXXXX";
  const std::string dir = mkdtemp(pattern.data());
  std::ofstream(dir + "/ours.safetensors", std::ios::binary) << Sample();
  std::ofstream(dir + "/check.py") << R"(
import sys, numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
dir = sys.argv[1]
t = load_file(dir + "/ours.safetensors")
assert sorted(t) == ["a", "b", "c", "empty"], sorted(t)
assert t["b"].shape == (2, 3) and t["b"].dtype == numpy.float32
assert t["c"].shape == () and t["c"].tobytes() == bytes(range(8))
assert t["b"].tobytes() == bytes(range(8, 32)) and t["a"].tolist() == [32, 33, 34]
assert safe_open(dir + "/ours.safetensors", "np").metadata() == {"step": "7"}
save_file({"x": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "y": numpy.array(3, dtype=numpy.int64)},
          dir + "/theirs.safetensors", metadata={"who": "python"})
)";
  ASSERT_EQ(std::system(absl::StrCat(python, " ", dir, "/check.py ", dir).c_str()), 0);
  const auto file = SafetensorsFile::Open(dir + "/theirs.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo* x = file->Find("x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->shape, (std::vector<int64_t>{2, 3}));
  float last = 0;
  memcpy(&last, file->Data(*x) + 20, 4);
  EXPECT_EQ(last, 5.0f);
  EXPECT_EQ(file->header().metadata.at("who"), "python");
  EXPECT_EQ(file->Find("z"), nullptr);
  std::filesystem::remove_all(dir);
}

TEST(ChecksumTest, PiecesGiveTheHashOfTheWhole) {
  // XXH3-128 of nothing, as published with the algorithm.
  EXPECT_EQ(HashHex(Xxh3("", 0)), "99aa06d3014798d86001c324468d497f");
  const std::string text(1000, 'x');
  Xxh3Stream stream;
  stream.Update(text.data(), 300);
  stream.Update(text.data(), 700);
  EXPECT_EQ(stream.Finish(), Xxh3(text.data(), text.size()));
  Xxh3Stream number;
  number.UpdateU64(0x0102030405060708);
  EXPECT_EQ(number.Finish(), Xxh3("\x08\x07\x06\x05\x04\x03\x02\x01", 8));
}

}  // namespace
}  // namespace ddprun
