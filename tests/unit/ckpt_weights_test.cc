// Weights of one or several files: parts put together, and what is wrong with them named.
#include "launcher/cli/ckpt_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/ckpt_places.h"
#include "tests/unit/ckpt_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CkptWeightsTest : public ::testing::Test {
 protected:
  // A file with a part of tensor "w" at this offset of the whole.
  std::string Part(const std::string& name, const std::vector<int64_t>& shape,
                   const std::vector<float>& values, const std::string& offset,
                   const std::string& whole) {
    folder_.Write(name, TensorFile({{"w", "F32", shape, FloatBytes(values)}},
                                   {{"w.offset", offset}, {"w.global_shape", whole}}));
    return folder_ / name;
  }
  std::string ErrorOf(const std::vector<std::string>& paths) {
    const auto weights = Weights::Open(paths);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kDataLoss) << weights.status();
    return std::string(weights.status().message());
  }
  Folder folder_;
};

TEST_F(CkptWeightsTest, PartsOfATensorAreOneTensor) {
  const auto weights = Weights::Open({Part("a", {3, 1}, {1, 4, 7}, "0,0", "3,3"),
                                      Part("b", {2, 2}, {2, 3, 5, 6}, "0,1", "3,3"),
                                      Part("c", {1, 2}, {8, 9}, "2,1", "3,3")});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const Weight& whole = weights->tensors().at("w");
  EXPECT_EQ(whole.shape, (std::vector<int64_t>{3, 3}));
  std::string buffer;
  EXPECT_EQ(whole.Data(&buffer), FloatBytes({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(weights->metadata().empty()) << "what tells of parts is none of the whole's";
  folder_.Write("whole",
                TensorFile({{"w", "F32", {3, 3}, FloatBytes({1, 2, 3, 4, 5, 6, 7, 8, 9})}}));
  EXPECT_EQ(Weights::Open({folder_ / "whole"})->Digest(), weights->Digest());
}

TEST_F(CkptWeightsTest, PartsThatDoNotMakeAWholeAreErrors) {
  const std::string left = Part("left", {2, 1}, {1, 2}, "0,0", "2,2");
  EXPECT_THAT(ErrorOf({left}), AllOf(HasSubstr("left"), HasSubstr("2 of 4"), HasSubstr("missing")));
  const std::string same = Part("same", {2, 1}, {1, 2}, "0,0", "2,2");
  EXPECT_THAT(ErrorOf({left, same}), AllOf(HasSubstr("as well"), HasSubstr("left")));
  const std::string outside = Part("outside", {2, 1}, {1, 2}, "0,2", "2,2");
  EXPECT_THAT(ErrorOf({outside}), HasSubstr("makes no sense"));
  const std::string other = Part("other", {2, 1}, {1, 2}, "0,1", "2,3");
  EXPECT_THAT(ErrorOf({left, other}), AllOf(HasSubstr("[2, 3] here"), HasSubstr("[2, 2] in")));
  const std::string negative = Part("negative", {2, 1}, {1, 2}, "0,-1", "2,2");
  EXPECT_THAT(ErrorOf({negative}), HasSubstr("makes no sense"));
}

TEST_F(CkptWeightsTest, ATensorInTwoFilesIsAnError) {
  folder_.Write("a", ModelFile(1));
  folder_.Write("b", ModelFile(2));
  EXPECT_THAT(ErrorOf({folder_ / "a", folder_ / "b"}),
              AllOf(HasSubstr("as well"), HasSubstr("\"")));
}

TEST_F(CkptWeightsTest, ADamagedFileIsNamed) {
  folder_.Write("bad.safetensors", ModelFile(1).substr(0, 100));
  EXPECT_THAT(ErrorOf({folder_ / "bad.safetensors"}), HasSubstr("bad.safetensors: not a valid"));
}

TEST_F(CkptWeightsTest, ShardsAreFoundInWhateverWayTheyAreCounted) {
  for (const char* name : {"ours/model-0-of-2", "ours/model-1-of-2", "theirs/model-00001-of-00002",
                           "theirs/model-00002-of-00002"}) {
    folder_.Write(std::string(name) + ".safetensors", ModelFile(1));
  }
  for (const char* name : {"ours", "theirs"}) {
    const auto files = WeightFiles(folder_ / name);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->size(), 2u);
  }
  folder_.Write("some/model-00002-of-00003.safetensors", ModelFile(1));
  folder_.Write("some/model-00001-of-00003.safetensors", ModelFile(1));
  EXPECT_THAT(WeightFiles(folder_ / "some").status().message(), HasSubstr("number 3 is missing"));
  folder_.Write("some/model-0-of-9.safetensors", ModelFile(1));
  EXPECT_THAT(WeightFiles(folder_ / "some").status().message(), HasSubstr("more than one set"));
}

TEST_F(CkptWeightsTest, AnIndexNamesFilesBesideItselfOnly) {
  folder_.Write("a.safetensors", ModelFile(1));
  folder_.Write("good.json", R"({"weight_map": {"conv.weight": "a.safetensors"}})");
  EXPECT_EQ(*WeightFiles(folder_ / "good.json"),
            std::vector<std::string>{folder_ / "a.safetensors"});
  const std::pair<const char*, const char*> cases[] = {
      {R"({"weight_map": {"x": "../a.safetensors"}})", "no file beside itself"},
      {R"({"weight_map": {"x": 3}})", "no file beside itself"},
      {R"({"weight_map": {"x": "b.safetensors"}})", "b.safetensors is missing"},
      {R"({"weight_map": []})", "no weight_map"},
      {"[]", "no weight_map"},
      {"{", "no weight_map"}};
  for (const auto& [text, problem] : cases) {
    folder_.Write("bad.json", text);
    const auto files = WeightFiles(folder_ / "bad.json");
    EXPECT_EQ(files.status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(files.status().message(), HasSubstr(problem)) << text;
  }
}

}  // namespace
}  // namespace ddprun::cli
