// A job in which something stands still: found from outside, examined, reported, started again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <map>
#include <memory>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> Shell(const std::string& timeout, const std::string& script) {
  return {"--hang-timeout", timeout, "--", "sh", "-c", script};
}

Launch::Json Report(const Launch& launch, int generation) {
  return Launch::Json::parse(
      ReadText(launch.run_dir() + "/reports/hang-g" + std::to_string(generation) + ".json"),
      nullptr, false);
}

// A program that says nothing is judged by its output and its processor time: the rank that sleeps
// is named, not the one that computes; the next generation succeeds.
TEST(Hang, TheRankThatSleepsIsNamedAndTheJobStartsAgain) {
  Launch launch(Mode::kTogether, 2,
                Shell("2",
                      "[ $DDPRUN_GENERATION = 2 ] && exit 0; [ $RANK = 1 ] && exec sleep 999; "
                      "while :; do :; done"));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const auto found = launch.WaitForEvent("hang_found", 1, 1);
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)["rank"], 1);
  EXPECT_EQ((*found)["report"], "reports/hang-g1.json");
  EXPECT_GE((*found)["seconds"].get<double>(), 2);
  const auto ended = launch.WaitForEvent("generation_ended", 1, 1);
  EXPECT_EQ((*ended)["cause"], "hang");
  EXPECT_EQ((*ended)["rank"], 1);
  EXPECT_EQ(launch.Result()["restarts"], 1);
  const Launch::Json report = Report(launch, 1);
  ASSERT_EQ(report["workers"].size(), 2u);
  EXPECT_EQ(report["rank"], 1);
  EXPECT_THAT(report["workers"][1]["state"].get<std::string>(), HasSubstr("sleeping"));
  EXPECT_NE(report["workers"][1]["stack"], "");
  EXPECT_THAT(ReadText(launch.run_dir() + "/reports/hang-g1.txt"),
              AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"), HasSubstr("stack (")));
  EXPECT_THAT(finished.output, HasSubstr("reports/hang-g1.json"));
}

// The same with the coordinator elsewhere.
TEST(Hang, ApartOverTcpToo) {
  Launch launch(Mode::kApart, 1,
                Shell("1", "[ $DDPRUN_GENERATION = 2 ] && exit 0; exec sleep 999"));
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_EQ((*launch.WaitForEvent("hang_found", 1, 1))["rank"], 0);
}

// D4: the decision is made outside the worker, which may be stopped; its step is known from its
// page, and the next generation goes on from the checkpoint.
TEST(Hang, AStoppedWorkerOfLibddprunIsFoundByItsStepPage) {
  Launch launch(Mode::kTogether, 2,
                {"--hang-timeout", "1.5", "--", ExamplePath("c_trainer"), "600", "5000"});
  ASSERT_TRUE(launch.WaitForEvent("checkpoint_committed", 1, 20));
  kill(launch.WorkerPid(1, 1), SIGSTOP);
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const auto found = launch.WaitForEvent("hang_found", 1, 1);
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)["rank"], 1);
  const Launch::Json report = Report(launch, 1);
  EXPECT_GE(report["workers"][1]["step"].get<int>(), 50);
  EXPECT_THAT(report["workers"][1]["state"].get<std::string>(), HasSubstr("stopped by a signal"));
  EXPECT_EQ(report["workers"][1]["stack_source"], "/proc");
  EXPECT_GT((*launch.WaitForEvent("generation_started", 2, 1))["resume_step"].get<int>(), 0);
}

// Off by default for programs that report nothing.
TEST(Hang, ASilentProgramIsNoHangByDefault) {
  Launch launch(Mode::kTogether, 1, {"--dry-run", "--", "sleep", "1"});
  EXPECT_EQ(launch.Wait().exit_code, 0);
  Launch quiet(Mode::kTogether, 1, {"--", "sh", "-c", "until [ -e ../go ]; do sleep 0.05; done"});
  ASSERT_GT(quiet.WorkerPid(1, 0), 0);
  const std::string job = ReadText(quiet.run_dir() + "/job.json");
  EXPECT_EQ(job.find("hang_timeout_seconds"), std::string::npos) << job;
  quiet.Signal(SIGTERM);
  EXPECT_EQ(quiet.Wait().exit_code, 143);
}

// A tool that hangs or floods does not hold up the restart, and the process it looked at is not
// left stopped: the kernel's own facts stand in the report instead.
TEST(Hang, ToolsThatHangOrFloodAreBounded) {
  std::vector<std::string> folders;
  std::vector<std::unique_ptr<Launch>> launches;
  for (const char* script : {"sleep 999", "yes '#0 endless thread'"}) {
    std::string folder = "/tmp/ddprun-tools-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    for (const char* tool : {"/gdb", "/py-spy"}) {
      std::ofstream(folder + tool) << "#!/bin/sh\n" << script << "\n";
      chmod((folder + tool).c_str(), 0755);
    }
    folders.push_back(folder);
    launches.push_back(std::make_unique<Launch>(
        Mode::kTogether, 1, Shell("1", "[ $DDPRUN_GENERATION = 2 ] && exit 0; exec sleep 999"),
        std::map<std::string, std::string>{{"PATH", folder + ":/usr/bin:/bin"}}));
  }
  for (size_t i = 0; i < launches.size(); ++i) {
    const Finished finished = launches[i]->Wait(40);
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    const Launch::Json worker = Report(*launches[i], 1)["workers"][0];
    EXPECT_EQ(worker["stack_source"], "/proc");
    EXPECT_LE(worker["stack"].get<std::string>().size(), 32768u);
    EXPECT_THAT(worker["stack"].get<std::string>(), HasSubstr("did not end in time"));
    EXPECT_EQ(std::system(("rm -r " + folders[i]).c_str()), 0);
  }
}

// gdb would read torch's CUDA library for longer than there is time: it leaves it out, and names
// the functions of others all the same.
TEST(Hang, GdbDoesNotReadTorchsCudaLibrary) {
  if (std::system("command -v gdb >/dev/null") != 0) GTEST_SKIP() << "no gdb";
  std::string folder = "/tmp/ddprun-gdb-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string library = folder + "/libtorch_cuda.so";
  ASSERT_EQ(std::system(("cp /lib/x86_64-linux-gnu/libm.so.6 " + library).c_str()), 0);
  Launch launch(Mode::kTogether, 1,
                Shell("1", "[ $DDPRUN_GENERATION = 2 ] && exit 0; LD_PRELOAD=" + library +
                               " exec sleep 999"));
  const Finished finished = launch.Wait(40);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const Launch::Json worker = Report(launch, 1)["workers"][0];
  EXPECT_EQ(worker["stack_source"], "gdb");
  EXPECT_THAT(worker["stack"].get<std::string>(), HasSubstr("nanosleep"));
  EXPECT_EQ(std::system(("rm -r " + folder).c_str()), 0);
}

// The budget counts hangs as any failure; what ends the job is told as such.
TEST(Hang, WithoutRestartsTheJobFails) {
  Launch launch(Mode::kTogether, 1,
                {"--max-restarts", "0", "--hang-timeout", "1", "--", "sleep", "999"});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_EQ(launch.Result()["first_failure"]["rank"], 0);
  EXPECT_THAT(launch.Result()["first_failure"]["reason"].get<std::string>(), HasSubstr("hung"));
}

// L65, S26: rank 0 is ready, rank 1 never comes. It is named with the place where it stands, and
// the next generation succeeds.
TEST(InitTimeout, TheRankThatIsNotReadyIsExaminedAndNamed) {
  const std::string trainer = ExamplePath("c_trainer") + " 20 5000";
  Launch launch(Mode::kTogether, 2,
                {"--init-timeout", "1", "--", "sh", "-c",
                 "[ $DDPRUN_GENERATION = 1 ] && [ $RANK = 1 ] && exec sleep 999; exec " + trainer});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const auto found = launch.WaitForEvent("init_timed_out", 1, 1);
  ASSERT_TRUE(found) << finished.output;
  EXPECT_EQ((*found)["rank"], 1);
  EXPECT_THAT((*found)["reason"].get<std::string>(),
              AllOf(HasSubstr("not ready within 1 s: rank 1"), HasSubstr("rank 1: sleeping")));
  const auto ended = launch.WaitForEvent("generation_ended", 1, 1);
  EXPECT_EQ((*ended)["cause"], "init_timeout");
  EXPECT_EQ((*ended)["rank"], 1);
  const Launch::Json report = Report(launch, 1);
  EXPECT_EQ(report["cause"], "init_timeout");
  ASSERT_EQ(report["workers"].size(), 2u);
  EXPECT_EQ(report["workers"][0]["ready"], true);
  EXPECT_EQ(report["workers"][1]["ready"], false);
  EXPECT_NE(report["workers"][1]["stack"], "");
  EXPECT_THAT(ReadText(launch.run_dir() + "/reports/hang-g1.txt"), HasSubstr("did not start"));
  EXPECT_THAT(finished.output, HasSubstr("reports/hang-g1.json"));
}

}  // namespace
}  // namespace ddprun::testing
