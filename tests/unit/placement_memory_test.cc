// When the GPUs are free of dead workers' memory (L18, A7).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/placement/memory_watch.h"

namespace ddprun::placement {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kGibibyte = uint64_t{1} << 30;

class MemoryWatchTest : public ::testing::Test {
 protected:
  MemoryWatchTest()
      : watch_(
            [this](const std::string& uuid) -> std::optional<GpuMemory> {
              const auto found = gpus_.find(uuid);
              if (found == gpus_.end()) return std::nullopt;
              return found->second;
            },
            [this](uint32_t pid) { return alive_.contains(pid); }) {}

  std::map<std::string, GpuMemory> gpus_;
  std::set<uint32_t> alive_;
  MemoryWatch watch_;
};

// A7.
TEST_F(MemoryWatchTest, MemoryOfAWorkerThatIsGoneIsAwaitedAndNamed) {
  gpus_["GPU-0"] = {kGibibyte, {}};
  EXPECT_THAT(watch_.Remember({"GPU-0"}), IsEmpty());
  gpus_["GPU-0"] = {21 * kGibibyte, {{77, 20 * kGibibyte}}};
  const auto held = watch_.StillHeld({77});
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_THAT(DescribeHeld(held),
              AllOf(HasSubstr("20.0 GiB (21474836480 bytes) of GPU-0"), HasSubstr("pid 77")));
  gpus_["GPU-0"] = {kGibibyte + (400 << 20), {{77, 400 << 20}}};
  EXPECT_THAT(watch_.StillHeld({77}), IsEmpty()) << "within what the driver itself varies by";
}

// A data loader's or another child's pid is not known, but it is dead.
TEST_F(MemoryWatchTest, AnUnknownDeadProcessCountsAndALivingOneOfOthersDoesNot) {
  gpus_["GPU-0"] = {0, {}};
  watch_.Remember({"GPU-0"});
  gpus_["GPU-0"] = {4 * kGibibyte, {{88, 4 * kGibibyte}}};
  EXPECT_THAT(watch_.StillHeld({77}), SizeIs(1));
  alive_ = {88};
  EXPECT_THAT(watch_.StillHeld({77}), IsEmpty());
  EXPECT_THAT(watch_.StillHeld({88}), SizeIs(1)) << "unkillable, but ours";
}

TEST_F(MemoryWatchTest, WhatOthersHadBeforeTheJobIsTheirsAndWorthANote) {
  gpus_["GPU-0"] = {30 * kGibibyte, {{5, 30 * kGibibyte}}};
  const auto others = watch_.Remember({"GPU-0"});
  ASSERT_THAT(others, SizeIs(1));
  EXPECT_EQ(others[0].pids, std::vector<uint32_t>{5});
  EXPECT_THAT(watch_.StillHeld({}), IsEmpty());
  gpus_["GPU-0"].used_bytes += 2 * kGibibyte;
  gpus_["GPU-0"].processes[0].bytes += 2 * kGibibyte;
  EXPECT_THAT(watch_.StillHeld({}), IsEmpty()) << "it may grow";
}

// In most containers the driver lists no process.
TEST_F(MemoryWatchTest, WithoutAListOfProcessesTheAmountDecides) {
  gpus_["GPU-0"] = {kGibibyte, {}};
  watch_.Remember({"GPU-0"});
  gpus_["GPU-0"].used_bytes = 2 * kGibibyte;
  const auto held = watch_.StillHeld({77});
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_EQ(held[0].bytes, kGibibyte);
  EXPECT_THAT(DescribeHeld(held), HasSubstr("does not say by whom"));
  watch_.GiveUp(held);
  EXPECT_THAT(watch_.StillHeld({77}), IsEmpty()) << "not waited for a second time";
}

TEST_F(MemoryWatchTest, AGpuThatDoesNotAnswerIsNotAwaited) {
  watch_.Remember({"GPU-0"});
  EXPECT_THAT(watch_.StillHeld({77}), IsEmpty());
}

}  // namespace
}  // namespace ddprun::placement
