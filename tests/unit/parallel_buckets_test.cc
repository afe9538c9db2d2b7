// Bucket layouts: assignment as in PyTorch, offsets, control slot, JSON, validation.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/parallel/bucket_layout.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Parameters of so many float32 each, named p0, p1, …
std::vector<BucketParameter> Floats(const std::vector<int64_t>& counts) {
  std::vector<BucketParameter> parameters;
  for (size_t i = 0; i < counts.size(); ++i) {
    parameters.push_back({.name = absl::StrCat("p", i), .numel = counts[i]});
  }
  return parameters;
}

std::vector<std::vector<int>> Assignment(const BucketLayout& layout) {
  std::vector<std::vector<int>> result;
  for (const Bucket& bucket : layout.buckets) {
    result.emplace_back();
    for (const BucketEntry& entry : bucket.entries) result.back().push_back(entry.parameter);
  }
  return result;
}

TEST(BucketLayout, TakesParametersInReverseAndClosesABucketThatHasReachedItsSize) {
  // Bytes: 40, 400, 80, 160. First bucket 100 bytes, then 400.
  const auto parameters = Floats({10, 100, 20, 40});
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(4), 100, 400);
  EXPECT_EQ(Assignment(layout), (std::vector<std::vector<int>>{{3}, {2, 1}, {0}}));
  EXPECT_TRUE(ValidateBucketLayout(layout, parameters).ok());
}

// torch._C._distributed_c10d._compute_bucket_assignment_by_size on the reversed list, one limit
// list a data type.
TEST(BucketLayout, KeepsDataTypesApartEachWithItsOwnSmallFirstBucket) {
  auto parameters = Floats({25, 25, 25, 25, 25, 25});  // 100 bytes as float32
  for (size_t i : {1, 3, 5}) {
    parameters[i].dtype = "bfloat16";
    parameters[i].element_bytes = 2;  // 50 bytes
  }
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(6), 50, 1000);
  EXPECT_EQ(Assignment(layout), (std::vector<std::vector<int>>{{5}, {4}, {3, 1}, {2, 0}}));
  EXPECT_EQ(layout.buckets[0].dtype, "bfloat16");
  EXPECT_EQ(layout.control_bucket, 3);
  EXPECT_TRUE(ValidateBucketLayout(layout, parameters).ok());
}

TEST(BucketLayout, StartsGradientsAtMultiplesOf16BytesAndEndsWithTheControlSlots) {
  const auto parameters = Floats({3, 5, 8});
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(3), 1 << 20, 1 << 20);
  ASSERT_EQ(layout.buckets.size(), 1U);
  EXPECT_EQ(layout.buckets[0].entries,
            (std::vector<BucketEntry>{{2, 0, 8}, {1, 8, 5}, {0, 16, 3}}));
  EXPECT_EQ(layout.control_offset, 19);
  EXPECT_EQ(layout.buckets[0].numel, 19 + kControlSlots);
}

TEST(BucketLayout, WithoutFloat32TheControlSlotsHaveABucketOfTheirOwn) {
  auto parameters = Floats({8});
  parameters[0].dtype = "bfloat16";
  parameters[0].element_bytes = 2;
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(1), 1, 1);
  ASSERT_EQ(layout.buckets.size(), 2U);
  EXPECT_EQ(layout.control_bucket, 1);
  EXPECT_EQ(layout.buckets[1].numel, kControlSlots);
  EXPECT_TRUE(ValidateBucketLayout(layout, parameters).ok());
}

TEST(BucketLayout, FollowsTheOrderOfArrivalWhenItIsKnown) {
  const auto parameters = Floats({10, 10, 10});
  const std::vector<int> order = {1, 2, 0};
  const BucketLayout layout = MakeBucketLayout(parameters, order, 40, 80);
  EXPECT_EQ(Assignment(layout), (std::vector<std::vector<int>>{{1}, {2, 0}}));
}

TEST(BucketLayout, SurvivesItsText) {
  auto parameters = Floats({3, 5, 8, 1000});
  parameters[1].dtype = "float16";
  parameters[1].element_bytes = 2;
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(4), 64, 4096);
  const std::string json = BucketLayoutToJson(layout, parameters);
  const auto read = BucketLayoutFromJson(json, parameters);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, layout);
  EXPECT_EQ(BucketLayoutToJson(*read, parameters), json);
}

// TR30: a checkpoint of another model is refused, and the message says what does not fit.
TEST(BucketLayout, ATextOfAnotherModelIsRefusedByName) {
  const auto parameters = Floats({3, 5});
  const std::string json =
      BucketLayoutToJson(MakeBucketLayout(parameters, ReverseOrder(2), 64, 64), parameters);
  const auto message = [&](const std::string& text, const std::vector<BucketParameter>& model) {
    const auto read = BucketLayoutFromJson(text, model);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  };
  auto renamed = parameters;
  renamed[1].name = "fc.bias";
  EXPECT_THAT(message(json, renamed), HasSubstr("no parameter 'p1'"));
  EXPECT_THAT(message(json, Floats({3, 6})), HasSubstr("parameter 'p1', which has 6"));
  EXPECT_THAT(message(json, Floats({3, 5, 7})), HasSubstr("parameter 'p2' stands in 0 buckets"));
  EXPECT_THAT(message("{", parameters), HasSubstr("parse error"));
  EXPECT_THAT(message("{}", parameters), HasSubstr("version"));
  EXPECT_THAT(message(R"({"version":2})", parameters), HasSubstr("its version is 2"));
}

TEST(BucketLayout, ATextWithOneControlSlotGetsTheOthers) {
  const auto parameters = Floats({3, 5});
  const BucketLayout layout = MakeBucketLayout(parameters, ReverseOrder(2), 64, 64);
  BucketLayout old = layout;
  old.buckets[static_cast<size_t>(old.control_bucket)].numel = old.control_offset + 1;
  const auto read = BucketLayoutFromJson(BucketLayoutToJson(old, parameters), parameters);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, layout);
}

TEST(BucketLayout, OverlapsGapsAtTheEndAndLostControlSlotsAreFound) {
  const auto parameters = Floats({4, 4});
  const BucketLayout good = MakeBucketLayout(parameters, ReverseOrder(2), 64, 64);
  ASSERT_TRUE(ValidateBucketLayout(good, parameters).ok());
  BucketLayout bad = good;
  bad.buckets[0].entries[1].offset = 0;
  EXPECT_FALSE(ValidateBucketLayout(bad, parameters).ok());
  bad = good;
  bad.buckets[0].entries[1].offset = 5;
  EXPECT_FALSE(ValidateBucketLayout(bad, parameters).ok());
  bad = good;
  bad.buckets[0].numel += 1;
  EXPECT_FALSE(ValidateBucketLayout(bad, parameters).ok());
  bad = good;
  bad.control_bucket = 7;
  EXPECT_FALSE(ValidateBucketLayout(bad, parameters).ok());
  bad = good;
  bad.control_offset = 2;
  EXPECT_FALSE(ValidateBucketLayout(bad, parameters).ok());
}

}  // namespace
}  // namespace ddprun
