// What is said where memory runs out, and what is such an error.
#include "worker/trainer/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/trainer/plan_memory.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMib = 1 << 20;

// A rank of three blocks that keeps all there is to keep.
OutOfMemory FullRank() {
  return {.reason = "tried to allocate 2 GiB\nand much more",
          .state = {.weights = 100 * kMib,
                    .gradients = 100 * kMib,
                    .optimizer = 200 * kMib,
                    .average = 100 * kMib,
                    .checkpoint_copy = 400 * kMib,
                    .loader = 50 * kMib,
                    .blocks = 3},
          .in_use = 3000 * kMib,
          .on_cpu = true};
}

TEST(OutOfMemory, WhatIsInUseIsPartedByItsKind) {
  OutOfMemory what = FullRank();
  EXPECT_THAT(OutOfMemoryText(what, {}),
              AllOf(HasSubstr("out of memory: tried to allocate 2 GiB\n  at most 2.93 GiB"),
                    HasSubstr("weights 100.0 MiB, gradients 100.0 MiB, optimizer 200.0 MiB, "
                              "averaged weights 100.0 MiB, copy for checkpoints 400.0 MiB, batches "
                              "prepared ahead 50.0 MiB, activations, LibTorch itself and the rest "
                              "2.00 GiB")));
  what.on_cpu = false;
  EXPECT_THAT(OutOfMemoryText(what, {}),
              AllOf(HasSubstr("averaged weights 100.0 MiB, activations and the rest 2.44 GiB"),
                    Not(HasSubstr("checkpoints")), Not(HasSubstr("prepared ahead"))))
      << "those lie in the host's memory";
  what.state = {};
  EXPECT_THAT(OutOfMemoryText(what, {}), Not(HasSubstr("weights 0"))) << "nothing is known yet";
}

TEST(OutOfMemory, TheEstimatesHaveNumbers) {
  TrainConfig config;
  config.data_batch_size = 64;
  OutOfMemory what = FullRank();
  EXPECT_THAT(OutOfMemoryText(what, config),
              AllOf(HasSubstr("[data] batch_size = 32 with [train] accumulation_steps = 2 (the "
                              "same update): up to 1.00 GiB less"),
                    HasSubstr("recompute"), HasSubstr("amp"), Not(HasSubstr("a smaller model"))));
  what.state.blocks = 1;
  EXPECT_THAT(OutOfMemoryText(what, config), Not(HasSubstr("recompute")))
      << "of one block all is computed again at once";
  config.data_batch_size = 1;
  config.precision_amp = "bf16";
  config.precision_recompute = "blocks";
  EXPECT_THAT(OutOfMemoryText(what, config),
              AllOf(HasSubstr("a smaller model"), Not(HasSubstr("batch_size =")),
                    Not(HasSubstr("[precision]"))));
}

TEST(OutOfMemory, TheAdviceIsThatOfTheDryRun) {
  OutOfMemory what = FullRank();
  MemoryAdvice advice;
  advice.plan.weights = advice.plan.gradients = 100 * kMib;
  advice.plan.activations = 2000 * kMib;
  advice.options = {{"[precision] recompute = \"blocks\"", 300 * kMib, 500 * kMib},
                    {"[precision] amp = \"bf16\"", 1100 * kMib, 1300 * kMib}};
  what.advice = &advice;
  EXPECT_THAT(
      OutOfMemoryText(what, {}),
      AllOf(HasSubstr("\n  by a dry run on the CPU it needs 2.15 GiB, of which 1.95 GiB for "
                      "activations\n  what would help:\n"
                      "  - [precision] recompute = \"blocks\": 300.0 MiB for activations\n"
                      "  - [precision] amp = \"bf16\": 1.07 GiB for activations"),
            Not(HasSubstr("batch_size =")), Not(HasSubstr("a smaller model"))));
  advice.unmeasured = {"[precision] recompute = \"blocks\" and amp = \"bf16\""};
  EXPECT_THAT(
      OutOfMemoryText(what, {}),
      HasSubstr("\n  - [precision] recompute = \"blocks\" and amp = \"bf16\" may help, too; "
                "there was no time to measure it"));
  advice.unmeasured.clear();
  advice.options.clear();
  EXPECT_THAT(OutOfMemoryText(what, {}), HasSubstr("- a smaller model"));
}

TEST(OutOfMemory, IsToldFromOtherErrors) {
  const at::Tensor small = at::zeros({1});
  try {
    at::empty({int64_t{1} << 45});
    FAIL() << "128 TiB were given";
  } catch (const std::exception& error) {
    EXPECT_TRUE(IsOutOfMemory(error)) << error.what();
  }
  try {
    small.reshape({2});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_FALSE(IsOutOfMemory(error));
  }
  EXPECT_GT(PeakMemoryInUse(at::kCPU), 1 << 20);
}

}  // namespace
}  // namespace ddprun
