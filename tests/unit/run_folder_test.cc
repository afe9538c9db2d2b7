// The run folder on a disk that is full: what was kept free serves the events and the result (S19).
// And one whose events are damaged.
#include "launcher/coordinator/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace ddprun::coordinator {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What is no event, or says what cannot be, is passed over.
TEST(RunFolderThatIsDamaged, IsReadAsFarAsItMakesSense) {
  std::string path = "/tmp/ddprun-folder-XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  std::ofstream(path + "/events.jsonl") << R"({"event":"generation_started","generation":2}
{"event":"restart_scheduled","generation":2}
{"event":"restart_scheduled","generation":2,"free":true}
{"event":"generation_ended","generation":2,"time_lost_s":1.5,"lost_to":"oom"}
{"generation":"x"}
{"generation":-1}
{"generation":18446744073709551615}
{"generation":1e300}
{"event":5,"generation":null}
{"event":"restart_scheduled","free":"x"}
{"time_lost_s":"x"}
{"time_lost_s":-1e308}
{"time_lost_s":1e308}
{"time_lost_s":1,"lost_to":3}
[[[[
)" << std::string("\0\xff", 2);
  auto folder = RunFolder::Open(path);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const Past past = (*folder)->ReadPast();
  EXPECT_EQ(past.generation, 2u);
  EXPECT_EQ(past.restarts, 2u);
  EXPECT_DOUBLE_EQ(past.time_lost_seconds, 2.5);
  EXPECT_DOUBLE_EQ(past.lost_by_cause.at("oom"), 1.5);
  fs::remove_all(path);
}

// A disk of 4 MiB of its own; needs a mount, so root.
class RunFolderOnAFullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(disk_.data()), nullptr);
    if (mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=4m") != 0) {
      GTEST_SKIP() << "mounting a small tmpfs needs root: " << strerror(errno);
    }
    mounted_ = true;
    auto opened = RunFolder::Open(disk_ + "/run");
    ASSERT_TRUE(opened.ok()) << opened.status();
    folder_ = *std::move(opened);
  }
  void TearDown() override {
    folder_.reset();
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
    rmdir(disk_.c_str());
  }
  // Until not one more byte fits.
  void Fill() {
    std::ofstream out(disk_ + "/ballast" + std::to_string(fills_++));
    const std::string block(4096, 'x');
    while (out.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  absl::Status Write(const nlohmann::ordered_json& event, double t) {
    return folder_->AppendEvents({RunFolder::EventLine(event, t)});
  }
  // Events until one is lost, at most `limit`.
  int Append(int limit) {
    int count = 0;
    while (count < limit) {
      if (!Write({{"event", "x"}, {"text", std::string(200, 'y')}}, count).ok()) break;
      ++count;
    }
    return count;
  }
  std::string disk_ = "/tmp/ddprun-disk-XXXXXX";
  bool mounted_ = false;
  int fills_ = 0;
  std::unique_ptr<RunFolder> folder_;
};

TEST_F(RunFolderOnAFullDisk, TheReserveIsAllocatedNotOnlyNamed) {
  folder_->MakeReserve();
  struct stat info = {};
  ASSERT_EQ(stat((disk_ + "/run/.reserve").c_str(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, 262144);
}

// Logs take all that events.jsonl frees: the rest is still there for the result.
TEST_F(RunFolderOnAFullDisk, HalfServesTheEventsAndHalfTheResult) {
  folder_->MakeReserve();
  Fill();
  EXPECT_GT(Append(500), 400);  // some 100 KiB
  EXPECT_TRUE(folder_->TookReserve());
  EXPECT_FALSE(folder_->TookReserve()) << "one line for it";
  Fill();
  Append(1000);
  folder_->ReleaseReserve();
  const absl::Status status = Write({{"event", "job_finished"}}, 1);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(folder_->WriteResult({{"text", std::string(60'000, 'r')}}).ok());
  EXPECT_FALSE(fs::exists(disk_ + "/run/.reserve"));
  // Every line but one that found no room is whole, and the last is its own.
  std::ifstream in(disk_ + "/run/events.jsonl");
  std::string line, last;
  int broken = 0;
  while (std::getline(in, line)) {
    if (!Json::accept(line)) ++broken;
    last = line;
  }
  EXPECT_LE(broken, 1);
  EXPECT_EQ(Json::parse(last)["event"], "job_finished");
}

TEST_F(RunFolderOnAFullDisk, WithoutAReserveTheResultWouldBeLost) {
  Fill();
  EXPECT_LT(Append(500), 50);
  EXPECT_FALSE(folder_->TookReserve());
  folder_->ReleaseReserve();
  EXPECT_FALSE(folder_->WriteResult({{"text", std::string(60'000, 'r')}}).ok());
}

TEST_F(RunFolderOnAFullDisk, NoRoomForTheReserveIsNoError) {
  Fill();
  folder_->MakeReserve();
  EXPECT_FALSE(fs::exists(disk_ + "/run/.reserve"));
}

}  // namespace
}  // namespace ddprun::coordinator
