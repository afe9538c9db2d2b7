// `ddprun ckpt` as it is typed: what it prints, writes and removes, its exit codes, and Python's
// readers on the files that it makes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/ckpt_folder.h"
#include "tests/unit/cli_process.h"

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CkptCommandTest : public ::testing::Test {
 protected:
  Ended Ckpt(const std::vector<std::string>& words) {
    std::vector<std::string> command = {DdprunPath(), "ckpt"};
    command.insert(command.end(), words.begin(), words.end());
    return RunToEnd(command, folder_.path());
  }
  // What was printed by a call that ends well.
  std::string Output(const std::vector<std::string>& words) {
    const Ended ended = Ckpt(words);
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    return ended.output;
  }
  // The only line of a call that ends with this code.
  std::string Error(int code, const std::vector<std::string>& words) {
    const Ended ended = Ckpt(words);
    EXPECT_EQ(ended.exit_code, code) << ended.error;
    EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 1) << ended.error;
    return ended.error;
  }
  bool Has(const std::string& name) { return fs::exists(folder_ / name); }
  std::string Step(int step) { return absl::StrCat("runs/job/checkpoints/step-", step); }
  void Damage(const std::string& name) {
    std::string bytes = folder_.Read(name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    folder_.Write(name, bytes);
  }
  // Runs this text in Python with torch and safetensors, in the folder.
  void Python(const std::string& text) {
    const char* python = std::getenv("DDPRUN_PYTHON");
    if (python == nullptr || *python == '\0') GTEST_SKIP() << "DDPRUN_PYTHON names no Python";
    folder_.Write("check.py", text);
    const Ended ended = RunToEnd({python, "check.py"}, folder_.path());
    EXPECT_EQ(ended.exit_code, 0) << ended.output << ended.error;
  }
  Folder folder_;
};

TEST_F(CkptCommandTest, LsShowsEachCheckpointAndWhatIsWrongWithIt) {
  for (uint64_t step : {9, 100, 20}) WriteCheckpoint(folder_, step);
  folder_.Write(Step(20) + "/model.safetensors", "short");
  fs::rename(folder_ / Step(9), folder_ / (Step(9) + ".bad-g3"));
  const std::string text = Output({"ls"});
  EXPECT_THAT(text, AllOf(HasSubstr("step-100 "), HasSubstr("rejected by generation 3"),
                          HasSubstr("bad: model.safetensors holds 5 bytes instead of")));
  const auto json = nlohmann::json::parse(Output({"ls", "--json", "runs/job"}));
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[2]["step"], 100);
  EXPECT_EQ(json[2]["state"], "ok");
  EXPECT_EQ(json[2]["world_size"], 4);
  EXPECT_EQ(json[2]["generation"], 2);
  EXPECT_GE(json[2]["bytes"], folder_.Read(Step(100) + "/model.safetensors").size());
  EXPECT_EQ(json[1]["state"], "bad");
  EXPECT_EQ(Output({"ls", "job"}), text) << "a job id stands for its folder in ./runs";
  EXPECT_THAT(Error(2, {"ls", "nowhere"}), HasSubstr("nowhere: is no run folder"));
}

TEST_F(CkptCommandTest, ShowTellsWhereTrainingStoodAndWhatTheTensorsAre) {
  for (uint64_t step : {9, 100}) WriteCheckpoint(folder_, step);
  const std::string newest = Output({"show"});
  EXPECT_THAT(newest, AllOf(HasSubstr("step 100 of job job"), HasSubstr("4 ranks"),
                            HasSubstr("epoch"), HasSubstr("conv.weight"), HasSubstr("[2, 2]"),
                            HasSubstr("2 tensors, 5 elements")));
  const auto json = nlohmann::json::parse(Output({"show", "9", "--json"}));
  EXPECT_EQ(json["manifest"]["step"], 9);
  EXPECT_EQ(json["trainer_state"]["config"]["a"], 1);
  EXPECT_EQ(json["tensors"][0]["name"], "bn.num_batches_tracked");
  const std::string digest = json["weights_digest"];
  EXPECT_THAT(Output({"show", Step(9)}), HasSubstr(digest));
  EXPECT_THAT(Output({"show", Step(9) + "/model.safetensors"}), HasSubstr(digest));
  EXPECT_THAT(Error(2, {"show", "10"}), HasSubstr("there are 9, 100"));
  // The same number as the published recipe gives.
  const char* source = std::getenv("DDPRUN_SOURCE");
  if (source == nullptr) GTEST_SKIP() << "DDPRUN_SOURCE is not set";
  const Ended script =
      RunToEnd({"/usr/bin/python3", std::string(source) + "/scripts/weights_digest.py",
                Step(9) + "/model.safetensors"},
               folder_.path());
  EXPECT_EQ(script.output, digest + "\n") << script.error;
}

TEST_F(CkptCommandTest, VerifyNamesTheFileThatIsDamaged) {
  for (uint64_t step : {9, 100}) WriteCheckpoint(folder_, step);
  EXPECT_THAT(Output({"verify"}),
              AllOf(HasSubstr("ok   runs/latest/checkpoints/step-9"), HasSubstr("step-100")));
  Damage(Step(9) + "/trainer_state.json");
  const Ended one = Ckpt({"verify"});
  EXPECT_EQ(one.exit_code, 1);
  EXPECT_THAT(one.output, AllOf(HasSubstr("BAD  runs/latest/checkpoints/step-9: trainer_state.json "
                                          "has checksum"),
                                HasSubstr("ok   runs/latest/checkpoints/step-100")));
  EXPECT_EQ(Ckpt({"verify", "100"}).exit_code, 0);
  // Written wrongly, with a checksum that is right.
  WriteCheckpoint(folder_, 11, {{"model.safetensors", ModelFile(1) + "x"}});
  EXPECT_THAT(Ckpt({"verify", "11"}).output,
              AllOf(HasSubstr("model.safetensors"), HasSubstr("BAD")));
  const auto json = nlohmann::json::parse(Ckpt({"verify", "--json"}).output);
  EXPECT_EQ(json.size(), 3u);
}

// A job removes old checkpoints while they are read: that is no damage.
TEST_F(CkptCommandTest, WhatAJobRemovesMeanwhileIsNotBad) {
  for (uint64_t step : {1, 2, 3}) WriteCheckpoint(folder_, step);
  std::atomic<bool> stop = false;
  std::thread job([&] {
    Folder staging;  // a job moves whole checkpoints to their places, and away from there
    for (uint64_t step = 4; !stop; ++step) {
      WriteCheckpoint(staging, step);
      const std::string now = absl::StrCat("runs/job/checkpoints/step-", step);
      fs::rename(staging / now, folder_ / now);
      const std::string old = absl::StrCat("runs/job/checkpoints/step-", step - 3);
      fs::rename(folder_ / old, folder_ / "runs/job/gone");
      fs::remove_all(folder_ / "runs/job/gone");
    }
  });
  for (int i = 0; i < 25; ++i) {
    EXPECT_THAT(Output({"verify"}), Not(HasSubstr("BAD")));
    Output({"show"});
    Output({"export", "-o", "a.safetensors", "--force"});
  }
  stop = true;
  job.join();
}

TEST_F(CkptCommandTest, ACheckpointHasTheNameThatLsPrints) {
  for (uint64_t step : {9, 100}) WriteCheckpoint(folder_, step);
  EXPECT_EQ(Output({"show", "step-9"}), Output({"show", "9"}));
  EXPECT_THAT(Error(2, {"show", "step-10"}), HasSubstr("there are 9, 100"));
  EXPECT_THAT(Error(2, {"show", "best"}), HasSubstr("[checkpoint] best = true"));
  EXPECT_THAT(Output({"verify", "runs/job"}), AllOf(HasSubstr("/step-9"), HasSubstr("/step-100")));
}

TEST_F(CkptCommandTest, ExportWritesWhatPythonOpens) {
  WriteCheckpoint(folder_, 9);
  Output({"export", "9", "-o", "model.safetensors"});
  Output({"export", "-o", "half.safetensors", "--dtype", "bf16", "--rename", "conv.=features.0."});
  Python(R"(
import torch
from safetensors.torch import load_file
model = load_file("model.safetensors")
assert sorted(model) == ["bn.num_batches_tracked", "conv.weight"], sorted(model)
assert model["conv.weight"].tolist() == [[9, 2], [3, 4]] and model["bn.num_batches_tracked"] == 7
half = load_file("half.safetensors")
assert half["features.0.weight"].dtype == torch.bfloat16
assert torch.equal(half["features.0.weight"], model["conv.weight"].bfloat16())
assert half["bn.num_batches_tracked"].dtype == torch.int64
)");
}

TEST_F(CkptCommandTest, NothingIsReplacedUnasked) {
  WriteCheckpoint(folder_, 9);
  folder_.Write("a.safetensors", "mine");
  EXPECT_THAT(Error(2, {"export", "-o", "a.safetensors"}), HasSubstr("--force"));
  EXPECT_EQ(folder_.Read("a.safetensors"), "mine");
  Output({"export", "-o", "a.safetensors", "--force"});
  EXPECT_EQ(FloatsOf(folder_ / "a.safetensors", "conv.weight")[0], 9);
  folder_.Write("b-00002-of-00002.safetensors", "mine");
  EXPECT_THAT(Error(2, {"convert", "a.safetensors", "-o", "b.safetensors", "--shards", "2"}),
              HasSubstr("b-00002-of-00002.safetensors: there is such a file"));
  EXPECT_FALSE(Has("b-00001-of-00002.safetensors"));
}

TEST_F(CkptCommandTest, ADamagedCheckpointIsNotExported) {
  WriteCheckpoint(folder_, 9);
  Damage(Step(9) + "/model.safetensors");
  EXPECT_THAT(Error(1, {"export", "9", "-o", "a.safetensors"}),
              AllOf(HasSubstr("step-9: model.safetensors has checksum")));
  EXPECT_FALSE(Has("a.safetensors"));
}

TEST_F(CkptCommandTest, AveragedWeightsTakeThePlaceOfTheTrainedOnes) {
  WriteCheckpoint(folder_, 9);
  EXPECT_THAT(Error(2, {"export", "9", "--ema", "-o", "a.safetensors"}), HasSubstr("ema_decay"));
  WriteCheckpoint(folder_, 10,
                  {{"ema.safetensors",
                    TensorFile({{"conv.weight", "F32", {2, 2}, FloatBytes({5, 6, 7, 8})}})}});
  Output({"export", "10", "--ema", "-o", "a.safetensors"});
  EXPECT_THAT(FloatsOf(folder_ / "a.safetensors", "conv.weight"), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(Output({"show", "a.safetensors"}), HasSubstr("bn.num_batches_tracked"));
}

TEST_F(CkptCommandTest, ShardsOfACheckpointBecomeOneFile) {
  WriteCheckpoint(
      folder_, 9,
      {{"model-0-of-2.safetensors", TensorFile({{"w", "F32", {1, 2}, FloatBytes({1, 2})}},
                                               {{"w.global_shape", "2,2"}, {"w.offset", "0,0"}})},
       {"model-1-of-2.safetensors",
        TensorFile({{"w", "F32", {1, 2}, FloatBytes({3, 4})}, {"b", "F32", {1}, FloatBytes({5})}},
                   {{"w.global_shape", "2,2"}, {"w.offset", "1,0"}})}});
  Output({"export", "9", "-o", "a.safetensors"});
  EXPECT_THAT(FloatsOf(folder_ / "a.safetensors", "w"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(FloatsOf(folder_ / "a.safetensors", "b"), ElementsAre(5));
}

// Rounding as torch's, over the whole range of numbers; names as DDP saves them; shards as Hugging
// Face's loaders read them, and back.
TEST_F(CkptCommandTest, ConvertAgreesWithPython) {
  Python(R"(
import torch
from safetensors.torch import save_file
torch.manual_seed(7)
wide = torch.randint(-2**31, 2**31 - 1, (300000,), dtype=torch.int64).int().view(torch.float32)
wide = wide[wide.isfinite() & (wide.abs() < 3e38)]
save_file({"module.wide": wide, "module.small": torch.randn(1000, 7) * 100, "module.double": torch.randn(50, dtype=torch.float64),
           "module.tiny": torch.rand(5000) * 1e-4, "module.count": torch.tensor(3), "module.mask": torch.tensor([True, False])},
          "ddp.safetensors")
save_file({"small": torch.randn(1000, 7) * 100, "tiny": torch.rand(5000) * 1e-6}, "small.safetensors")
)");
  if (IsSkipped() || HasFailure()) return;
  Output({"convert", "ddp.safetensors", "-o", "bf16.safetensors", "--prefix-strip", "module.",
          "--dtype", "bf16"});
  Output({"convert", "small.safetensors", "-o", "fp16.safetensors", "--dtype", "fp16"});
  Output({"convert", "fp16.safetensors", "-o", "back.safetensors", "--dtype", "fp32"});
  Output({"convert", "ddp.safetensors", "-o", "split.safetensors", "--shards", "3"});
  Output({"convert", "split.safetensors.index.json", "-o", "joined.safetensors"});
  Python(R"(
import json, torch
from safetensors.torch import load_file
ddp, bf16 = load_file("ddp.safetensors"), load_file("bf16.safetensors")
assert sorted("module." + name for name in bf16) == sorted(ddp)
for name, tensor in bf16.items():
    want = ddp["module." + name]
    want = want.bfloat16() if want.is_floating_point() else want
    assert tensor.dtype == want.dtype and torch.equal(tensor, want), name
small, fp16, back = (load_file(name + ".safetensors") for name in ("small", "fp16", "back"))
for name, tensor in small.items():
    assert torch.equal(fp16[name], tensor.half()) and torch.equal(back[name], tensor.half().float()), name
index = json.load(open("split.safetensors.index.json"))
assert set(index["weight_map"]) == set(ddp) and len(set(index["weight_map"].values())) == 3
for name, file in index["weight_map"].items():
    assert torch.equal(load_file(file)[name], ddp[name]), name
joined = load_file("joined.safetensors")
assert joined.keys() == ddp.keys() and all(torch.equal(joined[name], ddp[name]) for name in ddp)
)");
}

TEST_F(CkptCommandTest, WhatDoesNotFitIsSaidWithTheTensorsName) {
  folder_.Write("big.safetensors",
                TensorFile({{"head.weight", "F32", {3}, FloatBytes({1, 2, 1e6F})},
                            {"scale", "F8_E4M3", {1}, "x"}}));
  EXPECT_THAT(Error(1, {"convert", "big.safetensors", "-o", "a.safetensors", "--dtype", "fp16"}),
              AllOf(HasSubstr("\"scale\" is of type F8_E4M3")));
  folder_.Write("big.safetensors",
                TensorFile({{"head.weight", "F32", {3}, FloatBytes({1, 2, 1e6F})}}));
  EXPECT_THAT(Error(1, {"convert", "big.safetensors", "-o", "a.safetensors", "--dtype", "fp16"}),
              AllOf(HasSubstr("\"head.weight\": element 2 is 1e+06"), HasSubstr("bf16")));
  EXPECT_THAT(folder_.All(), ElementsAre("big.safetensors")) << "nothing half-written is left";
}

TEST_F(CkptCommandTest, WrongNamesAreUsageErrors) {
  folder_.Write("m.safetensors", ModelFile(1));
  const std::vector<std::string> convert = {"convert", "m.safetensors", "-o", "a.safetensors"};
  const auto error = [&](std::vector<std::string> more) {
    more.insert(more.begin(), convert.begin(), convert.end());
    return Error(2, more);
  };
  EXPECT_THAT(error({"--rename", "conv.wieght=x"}), HasSubstr("there is \"conv.weight\""));
  EXPECT_THAT(error({"--rename", "conv.weight=bn.num_batches_tracked"}),
              HasSubstr("would both be"));
  EXPECT_THAT(error({"--prefix-strip", "module."}), HasSubstr("no tensor's name begins so"));
  EXPECT_THAT(error({"--rename", "x"}), HasSubstr("FROM=TO"));
  EXPECT_THAT(error({"--dtype", "int8"}), HasSubstr("fp32, bf16 or fp16"));
  EXPECT_THAT(error({"--shards", "3"}), HasSubstr("only 2 tensors"));
  EXPECT_THAT(error({"second.safetensors"}), HasSubstr("one at a time"));
  EXPECT_THAT(error({"--keep", "3"}), HasSubstr("ddprun ckpt convert --help"));
  EXPECT_THAT(Error(2, {"convert", "m.safetensors"}), HasSubstr("-o FILE"));
  EXPECT_THAT(Error(2, {"convert", "-o", "a.safetensors"}), HasSubstr("convert what?"));
  EXPECT_THAT(Error(2, {"convert", "m.safetensors", "-o", "a.pt"}), HasSubstr(".safetensors"));
  EXPECT_THAT(Error(2, {"convert", "n.safetensors", "-o", "a.safetensors"}), HasSubstr("no file"));
  EXPECT_THAT(Error(2, {"export", "m.safetensors", "-o", "a.safetensors"}), HasSubstr("convert"));
  EXPECT_THAT(Error(2, {"prnue"}), HasSubstr("did you mean prune?"));
  EXPECT_FALSE(Has("a.safetensors"));
}

TEST_F(CkptCommandTest, PruneKeepsTheNewestWholeOnesAndTheBest) {
  for (uint64_t step : {10, 20, 30, 40, 50}) WriteCheckpoint(folder_, step);
  fs::create_directory_symlink("step-10", folder_ / "runs/job/checkpoints/best");
  WriteCheckpoint(folder_, 15, {{"best.json", "{}"}});
  WriteCheckpoint(folder_, 14, {{"best.json", "{}"}});
  Damage(Step(50) + "/model.safetensors");  // the same size: only its bytes tell
  EXPECT_THAT(Output({"prune", "--keep", "2", "--dry-run"}),
              AllOf(HasSubstr("would remove runs/latest/checkpoints/step-20"),
                    HasSubstr("would remove runs/latest/checkpoints/step-14"),
                    HasSubstr("step-15 is the best one"), HasSubstr("step-50 is bad"),
                    HasSubstr("step-10 is the best one"),
                    Not(HasSubstr("remove runs/latest/checkpoints/step-10"))));
  EXPECT_TRUE(Has(Step(20)));
  EXPECT_THAT(Output({"prune", "--keep", "2"}), HasSubstr("2 checkpoints, "));
  for (int step : {10, 15, 30, 40, 50}) EXPECT_TRUE(Has(Step(step))) << step;
  EXPECT_FALSE(Has(Step(20)));
  EXPECT_THAT(Error(2, {"prune"}), HasSubstr("--keep"));
  EXPECT_THAT(Error(2, {"prune", "--keep", "0"}), HasSubstr("--keep"));
}

TEST_F(CkptCommandTest, PruneLeavesARunningJobAlone) {
  for (uint64_t step : {10, 20}) WriteCheckpoint(folder_, step);
  folder_.Write("runs/job/.lock", "");
  const int lock = open((folder_ / "runs/job/.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(Error(2, {"prune", "--keep", "1"}), HasSubstr("in use by a running ddprun"));
  EXPECT_THAT(Error(2, {"prune", "--keep", "1", "runs/job/checkpoints"}), HasSubstr("in use"));
  EXPECT_TRUE(Has(Step(10)));
  EXPECT_EQ(Ckpt({"verify"}).exit_code, 0) << "looking is always allowed";
  close(lock);
  Output({"prune", "--keep", "1"});
  EXPECT_FALSE(Has(Step(10)));
}

}  // namespace
}  // namespace ddprun::cli
