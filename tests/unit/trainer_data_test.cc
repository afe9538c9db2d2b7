// Data store, loader, evaluation, snapshots and the digest of weights, each against its own rules.
// against their own rules.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/tensor_format.h"
#include "worker/data/idx_store.h"
#include "worker/data/loader.h"
#include "worker/data/pixel_statistics.h"
#include "worker/model/model.h"
#include "worker/trainer/evaluate.h"
#include "worker/trainer/metrics.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void Seed(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
}

class TemporaryDir {
 public:
  TemporaryDir() {
    std::string pattern = ::testing::TempDir() + "model_test_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  SampleSpec spec() const override { return {.input_shape = {1}, .classes = 10}; }
  absl::Status Fill(int64_t /*epoch*/, int64_t index, void* inputs,
                    int64_t* targets) const override {
    *static_cast<float*>(inputs) = static_cast<float>(index);
    *targets = index % 10;
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
};

std::vector<int64_t> ReadAll(Loader* loader) {
  std::vector<int64_t> seen;
  for (Batch batch = *loader->Next(); batch.inputs.defined(); batch = *loader->Next()) {
    for (int64_t i = 0; i < batch.inputs.size(0); ++i)
      seen.push_back(batch.inputs[i].item<int64_t>());
  }
  return seen;
}

TEST(LoaderTest, BatchesDoNotDependOnTheNumberOfThreads) {
  const auto dataset = std::make_shared<CountingDataset>(1000);
  std::vector<int64_t> order(1000);
  std::iota(order.rbegin(), order.rend(), 0);
  for (int threads : {0, 1, 2, 7}) {
    Loader loader(dataset, 33, threads);
    for (int round = 0; round < 3; ++round) {
      loader.Start(0, order);
      EXPECT_EQ(ReadAll(&loader), order) << threads;
    }
    // Half a list, then another one: nothing of the old list comes.
    loader.Start(0, order);
    ASSERT_TRUE(loader.Next().ok());
    loader.Start(1, {5, 6});
    EXPECT_EQ(ReadAll(&loader), (std::vector<int64_t>{5, 6})) << threads;
  }
}

std::string WriteIdx(const std::string& path, const std::vector<uint32_t>& shape,
                     const std::vector<uint8_t>& data) {
  std::string out = {0, 0, 8, static_cast<char>(shape.size())};
  for (uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(extent >> shift));
  }
  out.append(data.begin(), data.end());
  std::ofstream(path, std::ios::binary) << out;
  return path;
}

IdxFiles WriteSmallSet(const std::string& dir, uint8_t first) {
  std::vector<uint8_t> pixels(6 * 4);
  std::iota(pixels.begin(), pixels.end(), first);
  return {WriteIdx(dir + "/images", {6, 2, 2}, pixels),
          WriteIdx(dir + "/labels", {6}, {0, 1, 2, 3, 4, 5})};
}

TEST(IdxStoreTest, StatisticsAreExact) {
  const std::vector<uint8_t> pixels = {0, 255, 51, 204};
  const PixelStatistics statistics = ComputePixelStatistics(pixels.data(), pixels.size());
  EXPECT_DOUBLE_EQ(statistics.mean, 0.5);
  EXPECT_DOUBLE_EQ(statistics.deviation, std::sqrt((0.25 + 0.25 + 0.09 + 0.09) / 4));
  const std::vector<uint8_t> white(100000, 255);
  EXPECT_DOUBLE_EQ(ComputePixelStatistics(white.data(), white.size()).mean, 1.0);
}

TEST(IdxStoreTest, ARestartMapsTheCacheAndDamageIsMadeGood) {
  TemporaryDir dir;
  const std::string cache = dir.path() + "/state/data-cache";
  const IdxFiles files = WriteSmallSet(dir.path(), 10);
  const auto first = IdxStore::Open(files, cache);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE((*first)->mapped());
  const auto cache_file = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(cache)) {
      if (entry.path().extension() != ".lock") return entry.path();
    }
    return std::filesystem::path();
  };
  const auto modified = std::filesystem::last_write_time(cache_file());
  const auto size = std::filesystem::file_size(cache_file());
  ASSERT_TRUE(IdxStore::Open(files, cache).ok());
  EXPECT_EQ(std::filesystem::last_write_time(cache_file()), modified) << "not made again";
  for (const size_t offset : {size_t{0}, size_t{30}, size_t{4096}, static_cast<size_t>(size) - 1}) {
    {
      std::fstream file(cache_file(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(offset));
      file.put('\xee');
    }
    const auto again = IdxStore::Open(files, cache);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->images()[0], 10) << offset;
    EXPECT_EQ((*again)->labels()[5], 5) << offset;
    EXPECT_TRUE((*again)->mapped());
  }
  std::filesystem::resize_file(cache_file(), size - 1);
  EXPECT_EQ((*IdxStore::Open(files, cache))->labels()[5], 5);
}

TEST(IdxStoreTest, ChangedFilesGetANewCache) {
  TemporaryDir dir;
  const std::string cache = dir.path() + "/cache";
  ASSERT_TRUE(IdxStore::Open(WriteSmallSet(dir.path(), 10), cache).ok());
  const IdxFiles files = WriteSmallSet(dir.path(), 20);
  std::filesystem::last_write_time(
      files.images, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ((*IdxStore::Open(files, cache))->images()[0], 20);
}

TEST(IdxStoreTest, WithoutAUsableFolderTheDataAreReadIntoMemory) {
  TemporaryDir dir;
  const IdxFiles files = WriteSmallSet(dir.path(), 10);
  std::ofstream(dir.path() + "/file") << "not a folder";
  const auto store = IdxStore::Open(files, dir.path() + "/file/cache");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->mapped());
  EXPECT_EQ((*store)->images()[23], 33);
}

TEST(IdxStoreTest, RanksThatStartTogetherShareOneCacheFile) {
  TemporaryDir dir;
  const IdxFiles files = WriteSmallSet(dir.path(), 10);
  std::vector<std::thread> ranks;
  std::atomic<int> mapped = 0;
  for (int i = 0; i < 8; ++i) {
    ranks.emplace_back([&] {
      const auto store = IdxStore::Open(files, dir.path() + "/cache");
      if (store.ok() && (*store)->mapped() && (*store)->images()[3] == 13) ++mapped;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(mapped, 8);
}

TEST(EvaluateTest, EverySampleIsCountedOnceForAnyNumberOfRanks) {
  TemporaryDir dir;
  std::vector<uint8_t> pixels(101 * 784);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 7919 >> 3);
  std::vector<uint8_t> labels(101);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i % 10);
  for (const char* split : {"train", "t10k"}) {
    WriteIdx(absl::StrCat(dir.path(), "/", split, "-images-idx3-ubyte"), {101, 28, 28}, pixels);
    WriteIdx(absl::StrCat(dir.path(), "/", split, "-labels-idx1-ubyte"), {101}, labels);
  }
  TrainConfig config;
  config.model_name = "simple_cnn";
  config.data_kind = "idx";
  config.data_dir = dir.path();
  at::set_num_threads(1);
  const auto data = OpenDataset(config, DataSplit::kTest, "");
  ASSERT_TRUE(data.ok()) << data.status();
  Model model = *CreateModel({config, (*data)->spec()});
  ForwardPass forward(&model, config, at::kCPU);
  const Evaluation alone = *EvaluatePart(&model, &forward, *data, {});
  EXPECT_EQ(alone.targets, 101);
  EXPECT_EQ(alone.samples, 101);
  for (int world_size : {2, 3, 101, 150}) {
    Evaluation sum;
    for (int rank = 0; rank < world_size; ++rank) {
      const Evaluation part = *EvaluatePart(
          &model, &forward, *data, {.rank = rank, .world_size = world_size, .threads = rank % 3});
      sum.correct += part.correct;
      sum.targets += part.targets;
      sum.loss_sum += part.loss_sum;
    }
    EXPECT_EQ(sum.targets, 101) << world_size;
    // The batches are others, so float32 sums round otherwise.
    EXPECT_NEAR(sum.loss(), alone.loss(), 1e-6) << world_size;
    EXPECT_EQ(sum.correct, alone.correct) << world_size;
  }
}

TEST(MetricsTest, ALineIsOneJsonObject) {
  MetricsLine line = {.step = 100,
                      .epoch = 1,
                      .loss = 0.5,
                      .lr = 0.001,
                      .samples_per_s = 1234.5678,
                      .data_wait_s = 0.25,
                      .compute_s = 1.25,
                      .comm_wait_s = 0.5};
  const std::string text =
      "{\"step\":100,\"epoch\":1,\"loss\":0.5,\"lr\":0.001,\"samples_per_s\":1234.57,"
      "\"data_wait_s\":0.25,\"compute_s\":1.25,\"comm_wait_s\":0.5,\"utilization\":0.625";
  EXPECT_EQ(MetricsText(line), text + "}\n");
  line.loss_scale = 65536;
  EXPECT_EQ(MetricsText(line), text + ",\"loss_scale\":65536.0}\n");
  const std::string nothing = MetricsText({.loss = std::nan("")});
  EXPECT_THAT(nothing, HasSubstr("\"loss\":null"));
  EXPECT_THAT(nothing, Not(HasSubstr("utilization"))) << "of no time";
}

TEST(SnapshotTest, ACaptureIsThatMomentAndLoadsBack) {
  TemporaryDir dir;
  const std::vector<NamedTensor> tensors = {
      {"w", at::arange(6).to(at::kFloat).view({2, 3}).t()},  // not contiguous
      {"n", at::full({}, 7, at::kLong)},
      {"b", at::tensor({1, 2, 3}, at::kByte)}};
  auto snapshot = Snapshot::Create(tensors, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  snapshot->Capture();
  tensors[0].tensor.zero_();
  const std::string path = dir.path() + "/t.safetensors";
  std::ofstream(path, std::ios::binary)
      << snapshot->header()
      << std::string(static_cast<const char*>(snapshot->data()), snapshot->data_bytes());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(LoadTensors(*file, tensors).ok());
  EXPECT_TRUE(at::equal(tensors[0].tensor, at::arange(6).to(at::kFloat).view({2, 3}).t()));
  const auto error = [&](const std::vector<NamedTensor>& wanted) {
    return std::string(LoadTensors(*file, wanted).message());
  };
  EXPECT_THAT(error({tensors[0], tensors[1]}), HasSubstr("unexpected tensor \"b\""));
  EXPECT_THAT(error({tensors[0], tensors[1], tensors[2], {"x", at::ones({1})}}),
              HasSubstr("holds no tensor \"x\""));
  EXPECT_THAT(error({{"w", at::ones({2, 3})}, tensors[1], tensors[2]}),
              HasSubstr("is F32 [3, 2], expected F32 [2, 3]"));
}

TEST(DigestTest, IsThatOfTheDocumentedFraming) {
  const std::vector<NamedTensor> tensors = {{"b", at::ones({2})},
                                            {"a", at::full({}, 3, at::kLong)}};
  const std::string digest = *TensorsDigest(tensors);
  std::string bytes;
  const auto number = [&](uint64_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), 8);
  };
  const auto text = [&](const std::string& value) {
    number(value.size());
    bytes += value;
  };
  text("a"), text("I64"), number(0), number(8), number(3);
  text("b"), text("F32"), number(1), number(2), number(8), number(0x3f8000003f800000);
  EXPECT_EQ(digest, HashHex(Xxh3(bytes.data(), bytes.size())));
  EXPECT_EQ(*TensorsDigest({tensors[1], tensors[0]}), digest)
      << "the order of the list does not matter";
  EXPECT_NE(*TensorsDigest({{"b", at::ones({2, 1})}, tensors[1]}), digest);
}

TEST(DigestTest, ThePythonScriptGivesTheSame) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  const char* source = std::getenv("DDPRUN_SOURCE");
  if (source == nullptr || python == nullptr || *python == '\0')
    GTEST_SKIP() << "no DDPRUN_PYTHON, DDPRUN_SOURCE";
  TemporaryDir dir;
  Seed(7);
  TrainConfig config;
  config.model_name = "simple_cnn";
  const std::vector<NamedTensor> tensors =
      CreateModel({config, {.input_shape = {1, 28, 28}, .classes = 10}})->Parameters();
  auto snapshot = Snapshot::Create(tensors, 2);
  ASSERT_TRUE(snapshot.ok());
  snapshot->Capture();
  const std::string path = dir.path() + "/model.safetensors";
  std::ofstream(path, std::ios::binary)
      << snapshot->header()
      << std::string(static_cast<const char*>(snapshot->data()), snapshot->data_bytes());
  const std::string command = absl::StrCat(python, " ", source, "/scripts/weights_digest.py ", path,
                                           " > ", dir.path(), "/out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::string digest;
  std::ifstream(dir.path() + "/out") >> digest;
  EXPECT_EQ(digest, *TensorsDigest(tensors));
}

}  // namespace
}  // namespace ddprun
