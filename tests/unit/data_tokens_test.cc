// The data kinds of tokens, from files and synthetic: what a sample holds, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/data_files.h"
#include "tests/unit/data_samples.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class TokensTest : public DataKindsTest {
 protected:
  TokensTest() {
    config_.model_name = "gpt";
    config_.model_sequence_length = 4;
    config_.model_vocab_size = 100;
    config_.data_kind = "tokens";
    config_.data_dir = folder_.path();
    config_.data_mask_token = 99;
    std::vector<uint32_t> tokens(41);
    std::iota(tokens.begin(), tokens.end(), 0);
    WriteTokens(File(), 2, tokens);
  }
  std::string File() { return folder_.path() + "/train.bin"; }
};

TEST_F(TokensTest, EachTokenButTheFirstIsATargetOnce) {
  for (int bytes : {2, 4}) {
    std::vector<uint32_t> tokens(41);
    std::iota(tokens.begin(), tokens.end(), 0);
    WriteTokens(File(), bytes, tokens);
    config_.data_token_type = bytes == 2 ? "uint16" : "uint32";
    const auto data = Open();
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_EQ((*data)->size(), 10);
    const SampleSpec spec = (*data)->spec();
    EXPECT_EQ(spec.input_type, InputType::kInt64);
    EXPECT_EQ(spec.input_shape, std::vector<int64_t>{4});
    EXPECT_EQ(spec.target_shape, std::vector<int64_t>{4});
    EXPECT_EQ(spec.classes, 100);
    EXPECT_FALSE(spec.ignores);
    EXPECT_EQ(Take(**data, 0, 0), (Sample{{}, {0, 1, 2, 3}, {1, 2, 3, 4}}));
    EXPECT_EQ(Take(**data, 7, 9), (Sample{{}, {36, 37, 38, 39}, {37, 38, 39, 40}}));
    EXPECT_THAT((*data)->NameOf(9), HasSubstr("sample 9 (tokens from 36 on in "));
  }
}

TEST_F(TokensTest, OneTokenLessIsOneSampleLess) {
  std::filesystem::resize_file(File(), 2 * 40);
  EXPECT_EQ((*Open())->size(), 9);
  config_.data_task = "masked";
  EXPECT_EQ((*Open())->size(), 10) << "no token is a target only";
}

// Devlin et al.: 15 % of the tokens, of them 80 % masked, 10 % random, 10 % as they were.
TEST_F(TokensTest, BertHidesTokensAndAsksForThem) {
  config_.model_name = "bert";
  config_.model_sequence_length = 64;
  config_.model_vocab_size = 50000;
  config_.data_mask_token = 103;
  WriteTokens(File(), 2, std::vector<uint32_t>(64 * 50, 7));
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE((*data)->spec().ignores);
  int64_t chosen = 0, masked = 0, kept = 0, random = 0;
  constexpr int kEpochs = 20;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t i = 0; i < 50; ++i) {
      const Sample sample = Take(**data, epoch, i);
      ASSERT_EQ(sample, Take(**data, epoch, i));
      int64_t here = 0;
      for (size_t place = 0; place < 64; ++place) {
        if (sample.targets[place] == kIgnoredTarget) {
          ASSERT_EQ(sample.tokens[place], 7);
          continue;
        }
        ASSERT_EQ(sample.targets[place], 7);
        ++here;
        masked += sample.tokens[place] == 103 ? 1 : 0;
        kept += sample.tokens[place] == 7 ? 1 : 0;
        random += sample.tokens[place] != 103 && sample.tokens[place] != 7 ? 1 : 0;
      }
      ASSERT_GE(here, 1);
      chosen += here;
    }
  }
  EXPECT_NEAR(static_cast<double>(chosen) / (kEpochs * 50 * 64), 0.15, 0.005);
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(chosen), 0.8, 0.02);
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(chosen), 0.1, 0.02);
  EXPECT_NEAR(static_cast<double>(random) / static_cast<double>(chosen), 0.1, 0.02);
  EXPECT_NE(Take(**data, 0, 3).targets, Take(**data, 1, 3).targets) << "others in each epoch";
}

TEST_F(TokensTest, OneTokenIsHiddenAtLeast) {
  config_.data_task = "masked";
  config_.data_mask_probability = 1e-9;
  for (int64_t i = 0; i < 10; ++i) {
    const Sample sample = Take(**Open(), 0, i);
    EXPECT_EQ(std::count(sample.targets.begin(), sample.targets.end(), kIgnoredTarget), 3);
  }
}

TEST_F(TokensTest, BadFilesAndSizesAreRefusedByName) {
  EXPECT_THAT(Error(DataSplit::kTest),
              AllOf(HasSubstr("/val.bin: no such data file"), HasSubstr("test.bin")));
  WriteTokens(folder_.path() + "/val.bin", 2, {1, 2, 3, 4, 5});
  EXPECT_EQ((*Open(DataSplit::kTest))->size(), 1);
  config_.model_vocab_size = 40;
  const auto named = AllOf(HasSubstr("train.bin: token 40 at byte 80 (sample 10), but the "
                                     "vocabulary has the tokens 0 to 39"),
                           HasSubstr("at least 41"));
  const auto small = *Open();
  EXPECT_THAT(std::string(small->Check(0).message()), named) << "whatever the time";
  std::vector<int64_t> inputs(4), targets(4);
  EXPECT_THAT(std::string(small->Fill(0, 9, inputs.data(), targets.data()).message()), named)
      << "the last target of sample 9";
  EXPECT_TRUE(small->Fill(0, 8, inputs.data(), targets.data()).ok());
  config_.model_vocab_size = 41;
  EXPECT_TRUE((*Open())->Check(0).ok());
  config_.model_sequence_length = 41;
  EXPECT_THAT(Error(), HasSubstr("train.bin: holds 41 tokens, one sample needs 42"));
  std::filesystem::resize_file(File(), 7);
  EXPECT_THAT(Error(), HasSubstr("train.bin: 7 bytes are no whole number of uint16 tokens"));
  std::filesystem::resize_file(File(), 0);
  EXPECT_THAT(Error(), HasSubstr("train.bin: is empty"));
  config_.data_task = "masked";
  config_.data_mask_token = 41;
  EXPECT_THAT(Error(),
              HasSubstr("[data] mask_token: is 41, but the vocabulary has the tokens 0 to 40"));
  config_.model_name = "torchscript";
  config_.model_sequence_length = 0;
  EXPECT_THAT(Error(), HasSubstr("[model] sequence_length: missing"));
}

// A token far behind the first block of the search, and in each type.
TEST_F(TokensTest, EveryTokenOfALongFileIsLookedAt) {
  for (int bytes : {2, 4}) {
    std::vector<uint32_t> tokens(100'000, 1);
    tokens[77'777] = 65'000;
    WriteTokens(File(), bytes, tokens);
    config_.data_token_type = bytes == 2 ? "uint16" : "uint32";
    EXPECT_THAT((*Open())->Check(0).message(),
                HasSubstr(absl::StrCat("token 65000 at byte ", bytes * 77'777, " (sample ",
                                       77'777 / 4, ")")));
  }
  config_.model_name = "torchscript";
  config_.model_vocab_size = 0;
  EXPECT_EQ((*Open())->spec().classes, 65'001) << "the data say it where the model does not";
}

class SyntheticTokensTest : public DataKindsTest {
 protected:
  SyntheticTokensTest() {
    config_.model_name = "gpt";
    config_.model_sequence_length = 32;
    config_.data_kind = "synthetic";
    config_.data_samples = 3000;
  }
};

TEST_F(SyntheticTokensTest, FollowARuleNineTimesOfTen) {
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->spec().classes, 50257);
  std::map<int64_t, std::map<int64_t, int>> followers;
  int total = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    const Sample sample = Take(**data, 0, i);
    for (size_t place = 0; place < 32; ++place, ++total)
      ++followers[sample.tokens[place]][sample.targets[place]];
  }
  int usual = 0;
  for (const auto& [token, counts] : followers) {
    usual += std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->second;
  }
  EXPECT_LE(followers.size(), 256u);
  EXPECT_NEAR(static_cast<double>(usual) / total, 0.9, 0.01);
  config_.model_name = "bert";
  EXPECT_TRUE((*Open())->spec().ignores);
  config_.model_name = "torchscript";
  config_.data_task = "causal";
  EXPECT_THAT(Error(), HasSubstr("[model] vocab_size: missing"));
}

}  // namespace
}  // namespace ddprun
