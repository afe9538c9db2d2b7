// Which GPUs CUDA shows, and which of them a job gets (L50).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/placement/visible.h"

namespace ddprun::placement {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GpuList FourGpus() {
  GpuList list;
  for (const char* uuid : {"GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "GPU-cccc4444"}) {
    list.gpus.push_back({uuid, "", "H200", -1, {}});
  }
  list.looked_at = "NVML lists 4";
  return list;
}

std::vector<int> Numbers(const std::vector<VisibleDevice>& devices) {
  std::vector<int> numbers;
  for (const VisibleDevice& device : devices) numbers.push_back(device.gpu);
  return numbers;
}

std::string Error(const std::optional<std::string>& variable,
                  const std::vector<std::string>& wished) {
  const auto chosen = ChooseDevices(FourGpus(), variable, wished);
  return chosen.ok() ? "no error" : std::string(chosen.status().message());
}

std::string Variable(const GpuList& list, const std::optional<std::string>& variable,
                     const std::vector<std::string>& wished) {
  return VisibleVariable(list, *ChooseDevices(list, variable, wished), false);
}

// L50: indices, UUIDs and beginnings of UUIDs, as CUDA reads them.
TEST(VisibleTest, TheVariableIsReadAsCudaReadsIt) {
  const GpuList list = FourGpus();
  EXPECT_THAT(Numbers(VisibleDevices(list, std::nullopt)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Numbers(VisibleDevices(list, "2,0")), ElementsAre(2, 0));
  EXPECT_THAT(Numbers(VisibleDevices(list, " 1 , 3")), ElementsAre(1, 3));
  EXPECT_THAT(Numbers(VisibleDevices(list, "GPU-bbbb")), ElementsAre(2));
  EXPECT_THAT(Numbers(VisibleDevices(list, "GPU-aaaa")), IsEmpty()) << "two begin so";
  EXPECT_THAT(Numbers(VisibleDevices(list, "0,9,1")), ElementsAre(0)) << "9 ends the list";
  EXPECT_THAT(Numbers(VisibleDevices(list, "3,-1,0")), ElementsAre(3));
  EXPECT_THAT(Numbers(VisibleDevices(list, "")), IsEmpty());
  EXPECT_THAT(Numbers(VisibleDevices(list, "1,1")), IsEmpty()) << "one twice empties it";
  EXPECT_THAT(Numbers(VisibleDevices(list, "1,GPU-aaaa2222")), IsEmpty());
}

// L50: --gpus counts among what the parent's variable shows, as CUDA would.
TEST(VisibleTest, WishesAreChosenAmongTheVisibleByPositionOrUuid) {
  const GpuList list = FourGpus();
  EXPECT_THAT(Numbers(*ChooseDevices(list, std::nullopt, {"2", "0"})), ElementsAre(2, 0));
  EXPECT_THAT(Numbers(*ChooseDevices(list, "3,1", {"1"})), ElementsAre(1));
  EXPECT_THAT(Numbers(*ChooseDevices(list, "3,1", {"0", "GPU-aaaa2"})), ElementsAre(3, 1));
  EXPECT_EQ(Variable(list, "3,1", {"1", "0"}), "1,3");
  EXPECT_EQ(Variable(list, std::nullopt, {"2"}), "2");
  EXPECT_EQ(Variable(list, std::nullopt, {"GPU-bbbb"}), "GPU-bbbb3333");
  EXPECT_EQ(Variable(list, std::nullopt, {"GPU-bbbb", "0"}), "GPU-bbbb3333,GPU-aaaa1111")
      << "one way of naming for all";
}

TEST(VisibleTest, OneThatIsNotVisibleIsAnErrorThatNamesBoth) {
  EXPECT_THAT(Error("3,1", {"0", "2"}),
              AllOf(HasSubstr("--gpus 0,2: 2 is not among"), HasSubstr("CUDA_VISIBLE_DEVICES=3,1"),
                    HasSubstr("0 is GPU 3 (GPU-cccc4444), 1 is GPU 1 (GPU-aaaa2222)")));
  EXPECT_THAT(Error("3,1", {"GPU-bbbb3333"}),
              AllOf(HasSubstr("--gpus GPU-bbbb3333"), HasSubstr("CUDA_VISIBLE_DEVICES=3,1")));
  EXPECT_THAT(Error(std::nullopt, {"0", "4"}),
              AllOf(HasSubstr("--gpus 0,4: there is no GPU 4"), HasSubstr("NVML lists 4")));
  EXPECT_THAT(Error(std::nullopt, {"GPU-aaaa"}), HasSubstr("there is no GPU GPU-aaaa"));
  EXPECT_THAT(Error("", {"0"}), AllOf(HasSubstr("CUDA_VISIBLE_DEVICES="), HasSubstr("(none)")));
  EXPECT_THAT(Error(std::nullopt, {"1", "GPU-aaaa2222"}), HasSubstr("for the second time"));
}

// CUDA numbers different models by speed, NVML by the bus: only a UUID means the same to both.
TEST(VisibleTest, WhereModelsDifferWishesAreNamedByUuid) {
  GpuList list = FourGpus();
  list.gpus[0].name = "T4";
  EXPECT_EQ(VisibleVariable(list, *ChooseDevices(list, std::nullopt, {"0", "1"}), false),
            "GPU-aaaa1111,GPU-aaaa2222");
  EXPECT_EQ(VisibleVariable(list, *ChooseDevices(list, std::nullopt, {"0", "1"}), true), "0,1");
}

TEST(VisibleTest, MigInstancesAreNamedByUuidAndOneOfAGpuIsVisibleByItself) {
  GpuList list = FourGpus();
  list.gpus[1].slices = {"MIG-1111", "MIG-2222"};
  EXPECT_EQ(VisibleDevices(list, std::nullopt)[1].token, "MIG-1111");
  EXPECT_EQ(VisibleDevices(list, "MIG-2222").size(), 1u);
  EXPECT_EQ(Variable(list, std::nullopt, {"MIG-2222", "MIG-1111"}), "MIG-2222,MIG-1111");
  const auto other = ChooseDevices(list, "MIG-1111", {"MIG-2222"});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("CUDA_VISIBLE_DEVICES=MIG-1111"));
}

// Without NVML and UUIDs in /proc, names are believed and numbers are counted.
TEST(VisibleTest, WhereNothingIsKnownOfGpusUuidsAreBelieved) {
  GpuList list;
  list.gpus.resize(2);
  EXPECT_EQ(Variable(list, "GPU-1234,1", {}), "GPU-1234,1");
  EXPECT_EQ(VisibleDevices(list, "GPU-1234").size(), 1u);
}

}  // namespace
}  // namespace ddprun::placement
