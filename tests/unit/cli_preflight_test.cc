// What is checked before anything starts, and what a plan takes over from options, defaults and an
// earlier part of the job.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "launcher/cli/dry_run.h"
#include "launcher/cli/preflight.h"
#include "launcher/cli/program.h"
#include "launcher/cli/run_dir.h"
#include "launcher/cli/spec.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() {
    here_.working_dir = folder_.path();
    here_.binary_folder = folder_ / "bin";
    here_.version = "test";
    here_.cores = 6;
    here_.gpus.looked_at = "nothing was found";
    here_.environment = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/root"}};
    folder_.Write("bin/ddp-worker", "", 0755);
    WriteTinyJob(folder_);
    // A train.cfg and the data that it names are looked up from the process's own working
    // directory.
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
  }
  ~PreflightTest() override { std::filesystem::current_path(before_); }

  absl::StatusOr<RunPlan> Plan(const std::vector<std::string>& words) {
    const auto options = ParseCommandLine(words, "ddprun");
    if (!options.ok()) return options.status();
    return PlanRun(*options, here_);
  }
  std::string ErrorOf(const std::vector<std::string>& words) {
    const std::vector<std::string> before = folder_.All();
    const auto plan = Plan(words);
    EXPECT_EQ(folder_.All(), before) << "planning makes nothing";
    return plan.ok() ? "no error" : std::string(plan.status().message());
  }
  void HasGpus(size_t count) {
    here_.machine.gpus.gpus.assign(count, placement::Gpu{});
    here_.gpus.usable = static_cast<uint32_t>(count);
  }
  // As if the job of this command line had run in runs/x.
  void Leave(const std::vector<std::string>& words, const std::string& more_json = "") {
    std::vector<std::string> whole = {"--run-dir", "runs/x", "--job-id", "x"};
    whole.insert(whole.end(), words.begin(), words.end());
    const auto plan = Plan(whole);
    ASSERT_TRUE(plan.ok()) << plan.status();
    nlohmann::ordered_json job = {
        {"job_id", "x"},
        {"working_dir", plan->spec.working_dir()},
        {"processes_per_node", plan->spec.processes_per_node()},
        {"nodes_min", 1},
        {"nodes_max", 1},
        {"device", plan->spec.device()},
        {"grace_seconds", plan->spec.grace_seconds()},
        {"restart", {{"max_restarts", plan->spec.restart().max_restarts()}}}};
    for (const std::string& word : plan->spec.program()) job["program"].push_back(word);
    if (!plan->spec.train_config_json().empty()) {
      job["train"] = nlohmann::ordered_json::parse(plan->spec.train_config_json());
    }
    folder_.Write("runs/x/job.json", job.dump() + more_json);
  }
  void Succeed() {
    folder_.Write(
        "runs/x/events.jsonl",
        "{\"t\":1,\"event\":\"job_started\",\"generation\":0}\n"
        "{\"t\":2,\"event\":\"job_finished\",\"generation\":1,\"status\":\"succeeded\"}\n");
    folder_.Write("runs/x/result.json", R"({"status":"succeeded","exit_code":0,"final_step":8})");
  }

  Folder folder_;
  Surroundings here_;
  std::filesystem::path before_;
};

TEST_F(PreflightTest, DefaultsAreThoseOfTheDocuments) {
  const auto plan = Plan({"--", "true"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::JobSpec& spec = plan->spec;
  EXPECT_EQ(spec.processes_per_node(), 1u);
  EXPECT_EQ(spec.nodes_max(), 1u);
  EXPECT_EQ(spec.device(), "cpu");
  EXPECT_EQ(spec.restart().max_restarts(), 3u);
  EXPECT_FALSE(spec.restart().max_restarts_given());
  EXPECT_EQ(spec.restart().min_uptime_seconds(), 30);
  EXPECT_EQ(spec.restart().start_failures_limit(), 3u);
  EXPECT_EQ(spec.restart().no_progress_limit(), 3u);
  EXPECT_EQ(spec.grace_seconds(), 30);
  EXPECT_EQ(spec.lease_seconds(), 0);
  EXPECT_EQ(spec.join_timeout_seconds(), 600);
  EXPECT_FALSE(spec.resume());
  // L38, L74: a job id and a run folder of its own.
  EXPECT_THAT(spec.job_id(), MatchesRegex("[0-9]{8}-[0-9]{6}-[0-9a-f]{4}"));
  EXPECT_EQ(spec.run_dir(), folder_ / ("runs/" + spec.job_id()));
  EXPECT_TRUE(plan->point_latest);
  EXPECT_FALSE(Plan({"--run-dir", "/tmp/elsewhere-x", "--", "true"})->point_latest);
}

TEST_F(PreflightTest, ACoordinatorHasALeaseAndTakesWhatAgentsOffer) {
  here_.environment["CUDA_VISIBLE_DEVICES"] = "3";
  const auto plan = Plan({"coordinator", "--listen", "h:0", "--nnodes", "2:3", "--", "true"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.lease_seconds(), 3);
  EXPECT_EQ(plan->spec.processes_per_node(), 0u);
  EXPECT_FALSE(plan->spec.environment().contains("CUDA_VISIBLE_DEVICES")) << "each node's own";
  EXPECT_EQ(plan->spec.nodes_min(), 2u);
  EXPECT_EQ(plan->world_size, 0u);
}

// L73, and torchrun's OMP_NUM_THREADS.
TEST_F(PreflightTest, EnvironmentIsAddedOnlyWhereItIsNotSet) {
  const auto plan = Plan({"--nproc", "2", "--", "true"});
  EXPECT_THAT(plan->variables, ElementsAre("PYTHONUNBUFFERED=1"));
  EXPECT_EQ(plan->spec.environment().at("HOME"), "/root");
  EXPECT_TRUE(plan->spec.launching().choose_omp_threads());
  EXPECT_EQ(plan->places.workers[1].variables.at("OMP_NUM_THREADS"), "1");
  EXPECT_THAT(plan->places.threads, HasSubstr("OMP_NUM_THREADS=1"));
  EXPECT_THAT(Plan({"--", "true"})->variables, ElementsAre("PYTHONUNBUFFERED=1"));
  here_.environment["OMP_NUM_THREADS"] = "5";
  here_.environment["PYTHONUNBUFFERED"] = "";
  const auto given = Plan({"--nproc", "2", "--", "true"});
  EXPECT_THAT(given->variables, IsEmpty());
  EXPECT_THAT(given->places.workers[1].variables, IsEmpty());
}

TEST_F(PreflightTest, ProcessesAreCounted) {
  EXPECT_EQ(Plan({"--nproc", "cpu", "--", "true"})->world_size, 6u);
  EXPECT_EQ(Plan({"--nproc", "auto", "--", "true"})->world_size, 6u);
  EXPECT_THAT(ErrorOf({"--nproc", "gpu", "--", "true"}),
              AllOf(HasSubstr("--nproc gpu"), HasSubstr("nothing was found"), HasSubstr("cpu (6")));
  HasGpus(2);
  EXPECT_EQ(Plan({"--nproc", "gpu", "--", "true"})->world_size, 2u);
  EXPECT_EQ(Plan({"--nproc", "auto", "--", "true"})->world_size, 2u);
  EXPECT_EQ(Plan({"--nproc", "auto", "--device", "cpu", "--", "true"})->world_size, 6u);
  EXPECT_EQ(Plan({"--nproc", "gpu", "--gpus", "1", "--", "true"})
                ->places.workers[0]
                .variables.at("CUDA_VISIBLE_DEVICES"),
            "1");
}

// L50: GPUs that are not there.
TEST_F(PreflightTest, GpusThatAreNotThereAreAnError) {
  EXPECT_THAT(ErrorOf({"--device", "cuda", "--", "true"}),
              AllOf(HasSubstr("--device cuda"), HasSubstr("nothing was found")));
  HasGpus(2);
  EXPECT_THAT(ErrorOf({"--gpus", "0,2", "--", "true"}), HasSubstr("there is no GPU 2"));
}

// MA4: never silently slow.
TEST_F(PreflightTest, ATrainerWithoutItsCudaPartSaysThatItUsesTheCpu) {
  HasGpus(2);
  const auto plan = Plan({"train.cfg"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.device(), "cpu");
  EXPECT_THAT(plan->notes, Contains(HasSubstr("training on the CPU although there are 2 GPUs")));
  EXPECT_THAT(ErrorOf({"--device", "cuda", "train.cfg"}), HasSubstr("libddp_worker_cuda.so"));
  folder_.Write("lib/libddp_worker_cuda.so", "");
  EXPECT_EQ(Plan({"train.cfg"})->spec.device(), "cuda");
  EXPECT_THAT(ErrorOf({"--nproc", "3", "train.cfg"}), HasSubstr("2 GPUs can be used"));
}

TEST_F(PreflightTest, BadInputIsFoundBeforeAnythingIsMade) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"log"}, "did you mean ddprun logs?"},
      {{"--", "no-such-program-x"}, "no-such-program-x: no such program in PATH (/usr/bin:/bin)"},
      {{"--", "./train.cfg"}, "./train.cfg: is not executable"},
      {{"--", "./data"}, "./data: is a folder"},
      {{"./nothing"}, "./nothing: no such file"},
      {{"nothing.py"}, "nothing.py: no such Python file"},
      {{"missing.cfg"}, "missing.cfg: cannot read"},
      {{"train.cfg", "--set", "train.lrr=1"}, "did you mean \"lr\"?"},
      {{"train.cfg", "--set", "train.lr=fast"}, "expected a number"},
      {{"train.cfg", "--set", "data.dir=/nowhere"}, "/nowhere"},
      {{"train.cfg", "--nproc", "65"}, "holds 64 samples for 65 ranks"},
      {{"--resume"}, "there is no runs/latest here"},
      {{"--resume", "--run-dir", "runs/none"}, "runs/none/job.json does not exist"},
      {{"--lease", "0.01", "--", "true"}, "--lease 0.01"},
      {{"--nproc", "2", "--log-ranks", "2", "--", "true"}, "--log-ranks 2: there are ranks 0 to 1"},
      {{"--", "true", "\xff"}, "\\xff is not UTF-8"},
      {{"--run-dir", "train.cfg", "--", "true"}, "train.cfg is a file"},
      {{"--run-dir", "x\xff", "--", "true"}, "x\\xff is not UTF-8"},
  };
  for (const auto& [words, text] : cases) {
    EXPECT_THAT(ErrorOf(words), HasSubstr(text)) << ::testing::PrintToString(words);
  }
}

TEST_F(PreflightTest, ATrainerThatIsNotBuiltIsNamedWithItsFix) {
  std::filesystem::remove(folder_ / "bin/ddp-worker");
  EXPECT_THAT(ErrorOf({"train.cfg"}),
              AllOf(HasSubstr("ddp-worker"), HasSubstr("scripts/build.sh")));
}

// MB2: what a result depends on stands in job.json.
TEST_F(PreflightTest, JobJsonHoldsTheVersionsOfTheTrainer) {
  const auto versions = [](const RunPlan& plan) {
    return nlohmann::json::parse(plan.job_facts_json).value("versions", nlohmann::json("none"));
  };
  EXPECT_EQ(versions(*Plan({"train.cfg"})), nlohmann::json::object()) << "none are known";
  folder_.Write("bin/ddp-worker.versions", "libtorch=2.11.0\ncuda=13.0\nnccl=2.28.9\n");
  const nlohmann::json expected = {{"libtorch", "2.11.0"}, {"cuda", "13.0"}, {"nccl", "2.28.9"}};
  EXPECT_EQ(versions(*Plan({"train.cfg"})), expected);
  EXPECT_EQ(versions(*Plan({"--", "true"})), "none") << "a program brings its own";
}

TEST_F(PreflightTest, ARunFolderThatHoldsAJobNeedsResume) {
  Leave({"--", "true"});
  EXPECT_THAT(ErrorOf({"--run-dir", "runs/x", "--", "true"}),
              AllOf(HasSubstr("holds job x"), HasSubstr("--resume")));
  EXPECT_THAT(ErrorOf({"--run-dir", "runs/x", "--resume", "--job-id", "y", "--", "true"}),
              HasSubstr("belongs to job x"));
  const auto plan = Plan({"--run-dir", "runs/x", "--resume", "--", "true"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->spec.resume());
  EXPECT_EQ(plan->spec.job_id(), "x");
}

TEST_F(PreflightTest, ARunFolderInUseIsRefused) {
  Leave({"--", "true"});
  folder_.Write("runs/x/.lock", "");
  const int fd = open((folder_ / "runs/x/.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  for (const bool resume : {false, true}) {
    std::vector<std::string> words = {"--run-dir", "runs/x"};
    if (resume) words.push_back("--resume");
    words.insert(words.end(), {"--", "true"});
    EXPECT_THAT(ErrorOf(words), HasSubstr("in use by a running ddprun"));
  }
  close(fd);
  EXPECT_TRUE(Plan({"--run-dir", "runs/x", "--resume", "--", "true"}).ok());
}

TEST_F(PreflightTest, ResumeAloneTakesTheNewestRunAsItWas) {
  Leave({"--nproc", "2", "--grace", "7", "--max-restarts", "9", "train.cfg", "--set",
         "train.lr=0.5"});
  std::filesystem::create_symlink("x", folder_ / "runs/latest");
  const auto plan = Plan({"--resume", "--set", "train.epochs=3"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.run_dir(), folder_ / "runs/x");
  EXPECT_EQ(plan->spec.processes_per_node(), 2u);
  EXPECT_EQ(plan->spec.grace_seconds(), 7);
  EXPECT_EQ(plan->spec.restart().max_restarts(), 9u);
  EXPECT_THAT(plan->spec.train_config_json(),
              AllOf(HasSubstr("\"lr\":0.5"), HasSubstr("\"epochs\":3")));
  EXPECT_THAT(plan->notes, Contains(HasSubstr("no checkpoint has been committed yet")));
}

TEST_F(PreflightTest, ResumeOfAProgramTakesItsCommandLine) {
  Leave({"--nproc", "3", "--", "sh", "-c", "exit 0"});
  const auto plan = Plan({"--resume", "--run-dir", "runs/x"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->spec.program(), ElementsAre("sh", "-c", "exit 0"));
  EXPECT_EQ(plan->world_size, 3u);
  EXPECT_THAT(ErrorOf({"--resume", "--run-dir", "runs/x", "train.cfg"}),
              HasSubstr("holds a job of a program of your own"));
  EXPECT_THAT(ErrorOf({"--resume", "--run-dir", "runs/x", "--set", "train.lr=1"}),
              HasSubstr("a program of your own"));
}

TEST_F(PreflightTest, AConfigThatChangesTheModelCannotResume) {
  Leave({"train.cfg"});
  EXPECT_THAT(
      ErrorOf({"--resume", "--run-dir", "runs/x", "train.cfg", "--set", "data.batch_size=8"}),
      AllOf(HasSubstr("batch_size"), HasSubstr("resumed")));
}

TEST_F(PreflightTest, AnotherWorldSizeGoesOnAndSaysThatIdentityIsGone) {
  Leave({"--nproc", "2", "train.cfg"});
  const auto plan = Plan({"--resume", "--run-dir", "runs/x", "--nproc", "4"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->world_size, 4u);
  EXPECT_THAT(plan->notes, Contains(HasSubstr("will not be bit-identical")));
}

TEST_F(PreflightTest, ARunThatSucceededHasNothingToDoUnlessMoreIsAsked) {
  Leave({"train.cfg"});
  Succeed();
  EXPECT_THAT(Plan({"--resume", "--run-dir", "runs/x"})->already_done,
              AllOf(HasSubstr("has succeeded already"), HasSubstr("8 steps")));
  EXPECT_THAT(Plan({"--resume", "--run-dir", "runs/x", "train.cfg"})->already_done, Not(IsEmpty()));
  EXPECT_EQ(Plan({"--resume", "--run-dir", "runs/x", "--set", "train.epochs=3"})->already_done, "");
  EXPECT_NE(Plan({"--resume", "--run-dir", "runs/x", "--set", "train.epochs=1"})->already_done, "");
}

TEST_F(PreflightTest, AnOldSuccessDoesNotHideALaterCrash) {
  Leave({"train.cfg"});
  Succeed();
  folder_.Write("runs/x/events.jsonl",
                folder_.Read("runs/x/events.jsonl") +
                    "{\"t\":3,\"event\":\"job_started\",\"generation\":1}\n");
  EXPECT_EQ(Plan({"--resume", "--run-dir", "runs/x"})->already_done, "");
}

TEST_F(PreflightTest, ResumeWithoutAnythingToResumeStartsFromScratch) {
  const auto plan = Plan({"--resume", "--run-dir", "runs/new", "train.cfg"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->spec.resume());
  EXPECT_THAT(plan->notes, Contains(HasSubstr("starting from scratch")));
}

TEST_F(PreflightTest, ADamagedJobFileIsAnError) {
  Leave({"--", "true"}, "}");
  EXPECT_THAT(ErrorOf({"--resume", "--run-dir", "runs/x"}), HasSubstr("job.json"));
}

TEST_F(PreflightTest, PythonFilesRunUnderPythonInTorchrunsWay) {
  folder_.Write("train.py", "");
  folder_.Write("path/python3", "", 0755);
  here_.environment["PATH"] = folder_ / "path";
  EXPECT_THAT(Plan({"train.py", "--lr", "1"})->spec.program(),
              ElementsAre("python3", "-u", "train.py", "--lr", "1"));
  EXPECT_THAT(ErrorOf({"--", "./train.py"}),
              AllOf(HasSubstr("not executable"), HasSubstr("-- python3 ./train.py")));
  here_.environment["PATH"] = "/nowhere";
  EXPECT_THAT(ErrorOf({"train.py"}), HasSubstr("neither python3 nor python in PATH"));
}

TEST_F(PreflightTest, ADryRunShowsRanksConfigurationAndEnvironment) {
  const auto options = ParseCommandLine({"--nproc", "2", "--dry-run", "train.cfg"}, "ddprun");
  const auto plan = PlanRun(*options, here_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string text = DryRunText(*options, *plan, here_, {});
  for (const char* part :
       {"RANK=1 LOCAL_RANK=1 WORLD_SIZE=2", "OMP_NUM_THREADS=1", "[train]", "epochs = 2",
        "bin/ddp-worker", "grace 30 s", "hang time-out 1800 s", "time limit none"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(RunFolderTest, AFullOrReadOnlyDiskLeavesNothingBehind) {
  Folder folder;
  // A file in the way is what even root cannot write through.
  folder.Write("file", "");
  const absl::Status status = MakeRunFolder(folder / "file/runs/x");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot be used"), HasSubstr("--run-dir")));
  EXPECT_THAT(folder.All(), ElementsAre("file"));
  ASSERT_TRUE(MakeRunFolder(folder / "runs/a/b").ok());
  EXPECT_THAT(folder.All(), ElementsAre("file", "runs", "runs/a", "runs/a/b"));
}

TEST(TextTest, Utf8IsToldFromOtherBytes) {
  for (const char* good : {"", "abc", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad :
       {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

}  // namespace
}  // namespace ddprun::cli
