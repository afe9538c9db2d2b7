// Whole jobs of the built-in trainer whose ranks meet different data: a file that one of them
// cannot read, folders that are not the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class TrainerData : public ::testing::Test {
 protected:
  TrainerData() {
    std::string pattern = ::testing::TempDir() + "trainer_data_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~TrainerData() override { fs::remove_all(folder_); }

  // Two classes of two pictures each in both splits.
  std::string PutPictures(const std::string& name) {
    const char* source = std::getenv("DDPRUN_SOURCE");
    const fs::path pictures = fs::path(source == nullptr ? "." : source) / "tests/data/images";
    for (const char* part : {"train/a", "train/b", "val/a", "val/b"}) {
      fs::create_directories(folder_ / name / part);
      for (const char* file : {"0.jpg", "1.jpg"}) {
        fs::copy(pictures / "large.jpg", folder_ / name / part / file);
      }
    }
    return folder_ / name;
  }
  std::string WriteConfig(const std::string& name, const std::string& data) {
    const std::string path = folder_ / name;
    std::ofstream(path) << "[model]\nname = \"resnet18\"\n"
                        << "[data]\nkind = \"image_folder\"\ndir = \"" << data
                        << "\"\nimage_size = 32\nresize = 36\nbatch_size = 1\n"
                        << "[train]\nepochs = 1\n[checkpoint]\nevery_steps = 0\nbest = true\n";
    return path;
  }
  fs::path folder_;
};

// Both ranks end, with the name of the picture, and what was trained is saved.
TEST_F(TrainerData, AnEvaluationThatFailsOnOneRankLeavesTheFinalCheckpoint) {
  const std::string data = PutPictures("data");
  const std::string cut = data + "/val/b/1.jpg";  // of rank 1; ddprun itself tries the first two
  fs::resize_file(cut, fs::file_size(cut) / 2);
  Launch launch(Mode::kTogether, 2, {WriteConfig("train.cfg", data)});
  const Finished finished = launch.Wait(120);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  EXPECT_EQ(result["first_failure"]["rank"], 1) << result;
  const std::string reason = result["first_failure"]["reason"];
  EXPECT_NE(reason.find(cut), std::string::npos) << reason;
  const std::string checkpoints = launch.run_dir() + "/checkpoints";
  EXPECT_TRUE(fs::exists(checkpoints + "/step-2/manifest.json")) << finished.output;
  EXPECT_FALSE(fs::exists(checkpoints + "/best")) << "it was not evaluated";
}

// The worker itself as a program, so that each rank has a configuration of its own, as on two
// machines. `reason` is that of the failure.
void EndOfTwo(const fs::path& folder, std::string* reason) {
  const char* bin = std::getenv("DDPRUN_BIN");
  Launch launch(Mode::kTogether, 2,
                {"--", "sh", "-c",
                 std::string("exec ") + (bin == nullptr ? "." : bin) + "/ddp-worker " +
                     folder.string() + "/train-$RANK.cfg"});
  const Finished finished = launch.Wait(120);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_FALSE(launch.WaitForEvent("training_progressed", 1, 0));
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  *reason = result["first_failure"]["reason"];
}

TEST_F(TrainerData, RanksWithOtherFilesAreToldBeforeTheFirstStep) {
  for (const std::string file : {"train/b/1.jpg", "val/b/1.jpg"}) {
    fs::remove_all(folder_ / "0");
    fs::remove_all(folder_ / "1");
    const std::string here = PutPictures("0"), there = PutPictures("1");
    fs::rename(there + "/" + file, there + "/" + file + ".jpg");
    WriteConfig("train-0.cfg", here);
    WriteConfig("train-1.cfg", there);
    std::string reason;
    EndOfTwo(folder_, &reason);
    const std::string split = file.starts_with("train") ? "training" : "test";
    EXPECT_NE(reason.find("the ranks do not have the same " + split + " data: rank 0 on "),
              std::string::npos)
        << reason;
    EXPECT_NE(reason.find("; rank 1 on "), std::string::npos) << reason;
  }
}

// Of equal shapes, so that nothing else would show it.
TEST_F(TrainerData, RanksWithOtherModulesAreToldBeforeTheFirstStep) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "no DDPRUN_PYTHON";
  std::ofstream(folder_ / "module.py") << R"py(
import sys, torch
class Scaled(torch.nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor
        self.fc = torch.nn.Linear(192, 10)
    def forward(self, x):
        return self.fc(x.flatten(1)) * self.factor
for rank in (0, 1):
    torch.jit.script(Scaled(rank + 1.0)).save(f"{sys.argv[1]}/{rank}.pt")
)py";
  const std::string command =
      std::string(python) + " -W ignore " + folder_.string() + "/module.py " + folder_.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const char* rank : {"0", "1"}) {
    std::ofstream(folder_ / (std::string("train-") + rank + ".cfg"))
        << "[model]\nname = \"torchscript\"\nfile = \"" << folder_.string() << "/" << rank
        << ".pt\"\nclasses = 10\n[data]\nkind = \"synthetic\"\nimage_size = 8\nsamples = 32\n"
        << "batch_size = 2\n[train]\nsteps = 2\nevaluate = false\n";
  }
  std::string reason;
  EndOfTwo(folder_, &reason);
  EXPECT_NE(reason.find("the ranks do not have the same module: rank 0 on "), std::string::npos)
      << reason;
  EXPECT_NE(reason.find("; rank 1 on "), std::string::npos) << reason;
}

}  // namespace
}  // namespace ddprun::testing
