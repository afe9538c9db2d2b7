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

// As on two machines: each rank is given a folder of its own.
TEST_F(TrainerData, RanksWithOtherFilesAreToldBeforeTheFirstStep) {
  for (const std::string file : {"train/b/1.jpg", "val/b/1.jpg"}) {
    fs::remove_all(folder_ / "0");
    fs::remove_all(folder_ / "1");
    const std::string here = PutPictures("0"), there = PutPictures("1");
    fs::rename(there + "/" + file, there + "/" + file + ".jpg");
    WriteConfig("train-0.cfg", here);
    WriteConfig("train-1.cfg", there);
    const char* bin = std::getenv("DDPRUN_BIN");
    Launch launch(Mode::kTogether, 2,
                  {"--", "sh", "-c",
                   std::string("exec ") + (bin == nullptr ? "." : bin) + "/ddp-worker " +
                       folder_.string() + "/train-$RANK.cfg"});
    const Finished finished = launch.Wait(120);
    EXPECT_EQ(finished.exit_code, 1) << finished.output;
    const Json result = launch.Result();
    EXPECT_EQ(result["generations"], 1) << "no restart";
    const std::string reason = result["first_failure"]["reason"];
    const std::string split = file.starts_with("train") ? "training" : "test";
    EXPECT_NE(reason.find("the ranks do not have the same " + split + " data: rank 0 on "),
              std::string::npos)
        << reason;
    EXPECT_NE(reason.find("; rank 1 on "), std::string::npos) << reason;
    EXPECT_FALSE(launch.WaitForEvent("training_progressed", 1, 0));
  }
}

}  // namespace
}  // namespace ddprun::testing
