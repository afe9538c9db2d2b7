// Slurm's variables and the rendezvous file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/options.h"
#include "launcher/cli/rendezvous_file.h"
#include "launcher/cli/slurm.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

// What slurmstepd 22.05 sets in the second task of `srun -N3`.
Variables StepOfThree() {
  return {{"SLURM_JOB_ID", "12"},        {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[01-03]"},
          {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
          {"SLURM_NODEID", "1"}};
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

absl::StatusOr<Options> Parse(Words words, const Variables& variables) {
  words.insert(words.end(), {"--", "prog"});
  return ParseCommandLine(words, "ddprun", variables);
}

std::string ErrorOf(const Words& words, const Variables& variables) {
  return std::string(Parse(words, variables).status().message());
}

// What no slurmstepd sets is not guessed at.
TEST(SlurmVariables, ThatLieAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"SLURM_JOB_ID", ""},          {"SLURM_JOB_ID", "x"},        {"SLURM_STEP_ID", "0\x1b[1m"},
      {"SLURM_GPUS_ON_NODE", "x"},   {"SLURM_GPUS_ON_NODE", "-1"}, {"SLURM_STEP_NUM_TASKS", "x"},
      {"SLURM_STEP_NODELIST", "n["}, {"SLURM_NODEID", "-1"}};
  for (const auto& [name, value] : cases) {
    EXPECT_THAT(
        ErrorOf({}, With(StepOfThree(), {{name, value}})),
        AllOf(HasSubstr(name + "="), HasSubstr("env -u"), ::testing::Not(HasSubstr("\x1b"))))
        << name << "=" << value;
  }
  EXPECT_TRUE(Parse({}, {{"SLURM_JOB_ID", ""}, {"SLURM_GPUS_ON_NODE", "x"}}).ok()) << "no step";
}

TEST(SlurmNodeList, IsExpandedAsScontrolDoes) {
  // The right side is the output of `scontrol show hostnames`, but for the third, which has a name
  // behind its brackets.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a", "a"},
      {"r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"},
      {"n[001-003,7],x[1-2]y", "n001 n002 n003 n7 x1y x2y"},
      {"n[9-11]", "n9 n10 n11"},
      {"n[09-11]", "n09 n10 n11"},
      {"a[1],b", "a1 b"},
      {"gpu-a.b[1-2],login", "gpu-a.b1 gpu-a.b2 login"}};
  for (const auto& [list, expanded] : cases) {
    const auto nodes = ExpandNodeList(list);
    ASSERT_TRUE(nodes.ok()) << nodes.status();
    EXPECT_EQ(absl::StrJoin(*nodes, " "), expanded);
  }
}

TEST(SlurmNodeList, OddOnesAreRefused) {
  for (const char* list :
       {"", ",", "a,", "n[", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[1-2-3]", "n[a-b]",
        "n[0-99999999]", "n[1-9000],m[1-9000]", "n[0-999]m[0-999]", "n[+1-2]", "n[1,]"}) {
    EXPECT_FALSE(ExpandNodeList(list).ok()) << list;
  }
}

TEST(SlurmStep, NamesRankAndNodesAreSlurms) {
  const auto options = Parse({}, StepOfThree());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job_id, "slurm-12.0");
  EXPECT_EQ(options->node, "n02");
  EXPECT_EQ(options->node_rank, 1);
  EXPECT_EQ(options->nodes_min, 3u);
  EXPECT_EQ(options->nodes_max, 3u);
  EXPECT_FALSE(options->resume);
  ASSERT_TRUE(options->slurm);
  EXPECT_EQ(options->slurm->nodes[0], "n01");
  EXPECT_FALSE(options->processes);
  EXPECT_THAT(options->notes, Contains(HasSubstr("no GPU: 1 worker on each node")));
}

TEST(SlurmStep, WhatIsGivenByHandWins) {
  const auto options = Parse(
      {"--nproc", "2", "--job-id", "mine", "--node", "x", "--node-rank", "2", "--nnodes", "2:3"},
      With(StepOfThree(), {{"SLURM_GPUS_ON_NODE", "4"}}));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job_id, "mine");
  EXPECT_EQ(options->node, "x");
  EXPECT_EQ(options->node_rank, 2);
  EXPECT_EQ(options->nodes_min, 2u);
  EXPECT_EQ(options->processes->number, 2u);
  const auto spare = Parse({"--nnodes", "1:2"}, With(StepOfThree(), {{"SLURM_NODEID", "2"}}));
  ASSERT_TRUE(spare.ok()) << spare.status();
  EXPECT_FALSE(spare->node_rank);  // a rank beyond --nnodes would be refused
  EXPECT_EQ(Parse({"--nnodes", "1:2"}, StepOfThree())->node_rank, 1);
  const auto alone = Parse({"--nnodes", "1"}, StepOfThree());
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_FALSE(alone->slurm);
  EXPECT_FALSE(alone->job_id) << "three jobs of one name would share a run folder";
}

TEST(SlurmStep, CoordinatorByHandNeedsNoFile) {
  const auto options = Parse({"--coordinator", "n01:29400"}, StepOfThree());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->slurm);
  EXPECT_EQ(options->node, "n02");
  EXPECT_EQ(options->nodes_max, 3u);
}

TEST(SlurmStep, ProcessesAreTheGpusThatSlurmGave) {
  for (const Variables& gpus :
       {Variables{{"SLURM_GPUS_ON_NODE", "4"}}, Variables{{"SLURM_STEP_GPUS", "0,1,2,3"}},
        Variables{{"SLURM_GPUS_ON_NODE", "a100:4"}, {"SLURM_JOB_GPUS", "0,1,2,3"}}}) {
    const auto options = Parse({}, With(StepOfThree(), gpus));
    ASSERT_TRUE(options.ok()) << options.status();
    ASSERT_TRUE(options->processes);
    EXPECT_EQ(options->processes->number, 4u);
    EXPECT_THAT(options->notes, Contains(HasSubstr("Slurm gave this node 4 GPUs: 4 workers")));
  }
  const auto cpu = Parse({"--device", "cpu"}, With(StepOfThree(), {{"SLURM_GPUS_ON_NODE", "4"}}));
  ASSERT_TRUE(cpu.ok());
  EXPECT_FALSE(cpu->processes);
}

TEST(SlurmStep, SeveralTasksOnANodeAreRefusedWithWhatToType) {
  EXPECT_THAT(ErrorOf({}, With(StepOfThree(), {{"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}})),
              AllOf(HasSubstr("Slurm starts 2 tasks on a node"),
                    HasSubstr("srun --ntasks=3 --ntasks-per-node=1"), HasSubstr("--nproc 2")));
  EXPECT_TRUE(
      Parse({"--nnodes", "1"}, With(StepOfThree(), {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}})).ok());
}

TEST(SlurmStep, MoreNodesThanTheStepHasAreRefused) {
  EXPECT_THAT(ErrorOf({"--nnodes", "4"}, StepOfThree()),
              AllOf(HasSubstr("--nnodes 4"), HasSubstr("has 3 nodes"), HasSubstr("-N")));
}

TEST(SlurmStep, OddVariablesAreNamedWithTheirValue) {
  const std::vector<std::pair<std::string, std::string>> odd = {
      {"SLURM_JOB_ID", "twelve"},     {"SLURM_STEP_NODELIST", "n[01-"},
      {"SLURM_STEP_NODELIST", ""},    {"SLURM_STEP_NUM_NODES", "4"},
      {"SLURM_STEP_NUM_NODES", "x"},  {"SLURM_NODEID", "3"},
      {"SLURM_NODEID", "-1"},         {"SLURM_STEP_TASKS_PER_NODE", "many"},
      {"SLURM_RESTART_COUNT", "1.5"}, {"SLURM_JOB_NUM_NODES", "0x3"}};
  for (const auto& [name, value] : odd) {
    EXPECT_THAT(ErrorOf({}, With(StepOfThree(), {{name, value}})),
                AllOf(HasSubstr(absl::StrCat(name, "=", value)), HasSubstr("srun")));
  }
}

TEST(SlurmStep, TasksOfArraysHaveTheirOwnNames) {
  const auto options =
      Parse({}, With(StepOfThree(), {{"SLURM_ARRAY_JOB_ID", "11"}, {"SLURM_ARRAY_TASK_ID", "3"}}));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job_id, "slurm-11_3.0");
  EXPECT_EQ(options->slurm_job, "11_3") << "12 alone may be the whole array";
}

TEST(SlurmStep, QueuedAgainMeansGoingOn) {
  const Variables again = With(StepOfThree(), {{"SLURM_RESTART_COUNT", "2"}});
  const auto options = Parse({}, again);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->resume);
  EXPECT_EQ(options->job_id, "slurm-12.0");
  EXPECT_THAT(options->notes, Contains(HasSubstr("has queued job 12 again (2 times)")));
}

TEST(SlurmAllocation, WithoutSrunOneNodeIsUsedAndANoteSaysSo) {
  const Variables batch = {{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "3"}};
  const auto options = Parse({}, batch);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->slurm);
  EXPECT_FALSE(options->nodes_max);
  EXPECT_FALSE(options->job_id) << "a script may start several jobs";
  EXPECT_THAT(options->notes, Contains(HasSubstr("srun ddprun")));
  const auto requeue = Parse({"--requeue"}, batch);
  ASSERT_TRUE(requeue.ok()) << requeue.status();
  EXPECT_EQ(requeue->job_id, "slurm-12");
  // A shell of salloc counts as no step either.
  EXPECT_FALSE(Parse({}, With(batch, {{"SLURM_STEP_ID", "4294967290"}}))->slurm);
}

TEST(SlurmAllocation, RequeueOutsideOfSlurmIsRefused) {
  EXPECT_THAT(ErrorOf({"--requeue"}, {}), HasSubstr("--requeue: this is no job of Slurm"));
}

TEST(SlurmStep, OneNodeRunsAsUsualUnderSlurmsName) {
  Variables one = With(StepOfThree(), {{"SLURM_STEP_NODELIST", "n01"},
                                       {"SLURM_STEP_NUM_NODES", "1"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURM_GPUS_ON_NODE", "2"}});
  const auto options = Parse({}, one);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->slurm);
  EXPECT_FALSE(options->nodes_max);
  EXPECT_EQ(options->job_id, "slurm-12.0");
  EXPECT_EQ(options->processes->number, 2u);
  one["SLURM_PTY_PORT"] = "1234";
  EXPECT_FALSE(Parse({}, one)->job_id) << "a person may start several jobs at a terminal";
}

TEST(SlurmRequeue, JobThatSomebodyHasCancelledStaysCancelled) {
  // As scontrol 22.05 shows them while the processes of the job end.
  const std::string rest = " Dependency=(null) Requeue=1 Restarts=0";
  EXPECT_EQ(WhyNoRequeue("JobId=1 JobState=RUNNING Reason=None" + rest), "");
  EXPECT_EQ(WhyNoRequeue("JobId=1 JobState=COMPLETING Reason=TimeLimit" + rest), "");
  EXPECT_EQ(WhyNoRequeue("JobId=1 JobState=TIMEOUT Reason=TimeLimit" + rest), "");
  EXPECT_NE(WhyNoRequeue("JobId=1 JobState=COMPLETING Reason=None" + rest), "");
  EXPECT_NE(WhyNoRequeue("JobId=1 JobState=CANCELLED Reason=None" + rest), "");
  EXPECT_EQ(WhyNoRequeue(""), "");
}

class RendezvousFile : public ::testing::Test {
 protected:
  RendezvousFile() : step_(**ReadSlurm(StepOfThree())) {
    mine_ = {"12", "0", 0, "n01", {"10.0.0.1", "fd00::1"}, 4711, 0, "secret of the job"};
  }
  std::string Path() const { return absl::StrCat(folder_.path(), "/.rendezvous"); }
  absl::StatusOr<Rendezvous> Await(double seconds, std::function<void()> while_waiting = {}) {
    ClusterWait wait;
    wait.pause = [this, while_waiting](double) {
      ++pauses_;
      if (while_waiting) while_waiting();
      return pauses_ < 1000;
    };
    wait.say = [this](const std::string& line) { lines_.push_back(line); };
    return AwaitRendezvous(folder_.path(), step_, seconds, wait);
  }

  Folder folder_;
  SlurmStep step_;
  Rendezvous mine_;
  int pauses_ = 0;
  std::vector<std::string> lines_;
};

TEST_F(RendezvousFile, IsForItsOwnerAloneAndComesBackWhole) {
  ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
  struct stat info = {};
  ASSERT_EQ(stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const auto read = ReadRendezvous(folder_.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(IsOf(*read, step_));
  EXPECT_EQ(read->addresses, mine_.addresses);
  EXPECT_EQ(read->port, 4711u);
  EXPECT_EQ(read->secret, mine_.secret);
  RemoveRendezvous(folder_.path(), step_);
  EXPECT_EQ(ReadRendezvous(folder_.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RendezvousFile, MemberWaitsForItAndPassesOverOneOfAnEarlierStart) {
  Rendezvous stale = mine_;
  stale.slurm_step = "7";
  ASSERT_TRUE(WriteRendezvous(folder_.path(), stale).ok());
  const auto found = Await(600, [this] {
    if (pauses_ == 3) {
      ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
    }
  });
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->slurm_step, "0");
  EXPECT_EQ(pauses_, 3);
}

TEST_F(RendezvousFile, OneOfAnotherRequeueIsStale) {
  mine_.restarts = 1;
  ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
  const auto status = Await(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an earlier start"));
  RemoveRendezvous(folder_.path(), step_);
  EXPECT_EQ(access(Path().c_str(), F_OK), 0) << "not ours to remove";
}

TEST_F(RendezvousFile, OneThatNeverComesIsExplained) {
  const auto status = Await(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(Path()), HasSubstr("n01"), HasSubstr("a file system that all nodes see"),
            HasSubstr("DDPRUN_SECRET"), HasSubstr("--coordinator")));
}

TEST_F(RendezvousFile, SignalEndsTheWait) {
  pauses_ = 1000;
  EXPECT_EQ(Await(600).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(RendezvousFile, LinksAndFilesThatOthersCanReadAreNotTaken) {
  ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
  ASSERT_EQ(chmod(Path().c_str(), 0640), 0);
  EXPECT_THAT(std::string(ReadRendezvous(folder_.path()).status().message()),
              HasSubstr("others can read or write it"));
  ASSERT_EQ(chmod(Path().c_str(), 0600), 0);
  const std::string other = Path() + "-other";
  ASSERT_EQ(rename(Path().c_str(), other.c_str()), 0);
  ASSERT_EQ(symlink(other.c_str(), Path().c_str()), 0);
  EXPECT_THAT(std::string(ReadRendezvous(folder_.path()).status().message()),
              HasSubstr("is a link"));
  // The host's own file takes the link's place, and what it led to stays.
  ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
  EXPECT_TRUE(ReadRendezvous(folder_.path()).ok());
  EXPECT_EQ(access(other.c_str(), F_OK), 0);
  ASSERT_EQ(unlink(Path().c_str()), 0);
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadRendezvous(folder_.path()).status().message()),
              HasSubstr("no regular file"));
}

TEST_F(RendezvousFile, FileOfAnotherUserIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(WriteRendezvous(folder_.path(), mine_).ok());
  ASSERT_EQ(chown(Path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(std::string(ReadRendezvous(folder_.path()).status().message()),
              HasSubstr("belongs to user 65534"));
}

TEST_F(RendezvousFile, OddContentIsRefusedAndNotRepeated) {
  const std::string good = RendezvousText(mine_);
  for (
      const std::string& text :
      {std::string("not json"), std::string("{}"), std::string("[1]"),
       std::string(R"({"slurm_job":"12"})"), good.substr(0, good.size() / 2),
       std::string(
           R"({"slurm_job":1,"slurm_step":"0","restarts":0,"node":"a","addresses":["x"],"port":1})"),
       std::string(
           R"({"slurm_job":"1","slurm_step":"0","restarts":0,"node":"a","addresses":[],"port":1})"),
       std::string(
           R"({"slurm_job":"1","slurm_step":"0","restarts":0,"node":"a","addresses":["x"],"port":70000})"),
       std::string(100000, ' ')}) {
    EXPECT_EQ(ParseRendezvous(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_TRUE(ParseRendezvous(good).ok());
}

TEST_F(RendezvousFile, SecretOfTheUserIsNotWritten) {
  mine_.secret.clear();
  EXPECT_EQ(RendezvousText(mine_).find("secret"), std::string::npos);
}

}  // namespace
}  // namespace ddprun::cli
