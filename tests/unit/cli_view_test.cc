// What a person sees: lines for events, progress, and the summary.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_join.h"
#include "launcher/cli/format.h"
#include "launcher/cli/view.h"

namespace ddprun::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FormatTest, DurationsAreShortAndHaveUnits) {
  EXPECT_EQ(Duration(0.04), "0.0 s");
  EXPECT_EQ(Duration(9.94), "9.9 s");
  EXPECT_EQ(Duration(9.96), "10 s");
  EXPECT_EQ(Duration(59.7), "1 min 0 s");
  EXPECT_EQ(Duration(185), "3 min 5 s");
  EXPECT_EQ(Duration(7620), "2 h 7 min");
  EXPECT_EQ(Duration(273600), "3 d 4 h");
  EXPECT_EQ(Duration(-1), "?");
}

// L62: the worker's own report, its core and its dumps; nothing twice.
TEST(FormatTest, TheSummaryShowsWhatWasFoundOutAboutTheDeath) {
  const Json result = Json::parse(R"({"status":"failed","exit_code":1,"first_failure":{
      "generation":1,"rank":2,"node":"n1","pid":7,"exit_code":1,"reason":"exited with code 1: ValueError: x",
      "error":{"message":"ValueError: x","traceback":"Traceback:\n  File a.py\nValueError: x\n"},
      "core_dump":"core dump: /c/core.7","artifacts":["/l/nccl_trace_rank2","/l/nccl_trace_rank3"],
      "log_tail":["bye"]}})");
  SummaryContext context;
  const std::string text = absl::StrJoin(Summary(result, context), "\n");
  EXPECT_THAT(text, HasSubstr("rank 2 on node n1, pid 7, exited with code 1: ValueError: x\n"));
  EXPECT_THAT(text, HasSubstr("  its error report:\n    | Traceback:\n    |   File a.py\n"));
  EXPECT_THAT(text, HasSubstr("  core dump: /c/core.7\n"));
  EXPECT_THAT(text, HasSubstr("  flight recorder: /l/nccl_trace_rank2 and 1 more\n"));
  Json printed = result;
  printed["first_failure"]["log_tail"] = {"[rank2]: ValueError: x"};
  EXPECT_THAT(absl::StrJoin(Summary(printed, context), "\n"), Not(HasSubstr("its error report")));
}

TEST(FormatTest, ProgressShowsWhatIsKnown) {
  Progress progress;
  progress.generation = 2;
  progress.step = 300;
  progress.total_steps = 1000;
  progress.epoch = 1;
  progress.epochs = 2;
  progress.has_loss = true;
  progress.loss = 0.43218;
  progress.samples_per_second = 7654.3;
  progress.steps_per_second = 10;
  EXPECT_EQ(ProgressLine(progress),
            "generation 2, epoch 1/2, step 300/1000, loss 0.4322, 7654 samples/s, 1 min 10 s left");
  Progress little;
  little.generation = 1;
  little.step = 7;
  EXPECT_EQ(ProgressLine(little), "step 7");
}

TEST(FormatTest, EventsThatMatterHaveALine) {
  const auto line = [](const char* json) { return EventLine(Json::parse(json)); };
  EXPECT_EQ(line(R"({"event":"restart_scheduled","generation":1,"delay_seconds":2,
                     "restarts_used":1,"restarts_limit":3,"resume_step":100})"),
            "restart 1 of 3 in 2.0 s, from step 100");
  EXPECT_EQ(line(R"({"event":"restart_scheduled","generation":1,"delay_seconds":0,
                     "restarts_used":1,"restarts_limit":3,"resume_step":0})"),
            "restart 1 of 3 now");
  EXPECT_EQ(line(R"({"event":"restart_scheduled","generation":1,"delay_seconds":0.0,
                     "restarts_used":0,"restarts_limit":3,"resume_step":120,"free":true,
                     "reason":"a change of nodes is free of charge"})"),
            "restart now, from step 120: a change of nodes is free of charge");
  EXPECT_EQ(line(R"({"event":"node_lost","node":"b","reason":"nothing heard for 4 s"})"),
            "node b was lost: nothing heard for 4 s");
  EXPECT_EQ(line(R"({"event":"node_lost","node":"b","reason":"it left: it got SIGTERM",
                     "planned":true})"),
            "node b has left: it got SIGTERM");
  EXPECT_EQ(line(R"({"event":"generation_started","generation":2,"world_size":4,"nodes":["a","b"],
                     "resume_step":100})"),
            "generation 2: 4 workers on 2 nodes, from the checkpoint of step 100");
  EXPECT_EQ(line(R"({"event":"worker_exited","generation":1,"rank":2,"pid":77,"signal":"SIGKILL",
                     "cause":"failed"})"),
            "generation 1: rank 2 (pid 77) was killed by SIGKILL");
  EXPECT_EQ(line(R"({"event":"worker_exited","generation":1,"rank":0,"pid":7,"exit_code":1,
                     "cause":"secondary"})"),
            "");
  EXPECT_THAT(
      line(R"({"event":"checkpoint_rejected","step":200,"resume_step":100,"reason":"torn"})"),
      HasSubstr("step 200 does not verify, that of step 100 is used: torn"));
  EXPECT_THAT(line(R"({"event":"checkpoint_rejected","step":200,"resume_step":0,"reason":"torn"})"),
              HasSubstr("step 200 does not verify, and there is no older one, so that training "
                        "begins anew: torn"));
  EXPECT_THAT(line(R"({"event":"checkpoint_failed","step":200,"reason":"disk full"})"),
              HasSubstr("disk full"));
  EXPECT_EQ(line(R"({"event":"worker_ready","rank":0})"), "");
}

const char kFailed[] = R"({"status":"failed","exit_code":137,"failure_kind":"worker_failed",
  "reason":"all 3 restarts are used up","generations":4,"restarts":3,"final_step":250,"metrics":{},
  "first_failure":{"generation":4,"rank":2,"node":"host","pid":1234,"signal":"SIGKILL","t":1.5,
  "reason":"was killed by SIGKILL","log_tail":["line one","line two"]},"time_lost_s":4.25})";

// L62, L74, MB8: rank, node, signal, the end of its log, where the logs are, and what to do.
TEST(FormatTest, TheSummaryOfAFailureSaysWhoWhyWhereAndWhatToDo) {
  SummaryContext context{"runs/x", "ddprun --resume --run-dir runs/x", true, 61};
  EXPECT_THAT(Summary(Json::parse(kFailed), context),
              ElementsAre("failed with exit code 137 (worker_failed) after 1 min 1 s, 250 steps",
                          "  3 restarts, 4.2 s of training lost to failures",
                          "  cause: rank 2 on node host, pid 1234, was killed by SIGKILL",
                          "  the end of its log runs/x/logs/g4/rank2.log:", "    | line one",
                          "    | line two", "  no restart: all 3 restarts are used up",
                          "  to go on: ddprun --resume --run-dir runs/x"));
}

TEST(FormatTest, AFailureWithoutARankIsToldToo) {
  const Json result = Json::parse(R"({"status":"failed","exit_code":4,"failure_kind":"node_lost",
      "restarts":0,"time_lost_s":0,"first_failure":{"generation":1,"rank":-1,"node":"n2","pid":0,
      "reason":"node n2 was lost: nothing heard for 4 s","log_tail":[]}})");
  const std::string text = absl::StrJoin(Summary(result, {"runs/x", "resume", false, 3}), "\n");
  EXPECT_THAT(text, HasSubstr("cause: node n2 was lost"));
  EXPECT_THAT(text, HasSubstr("logs: runs/x/logs/g1/"));
}

TEST(FormatTest, AHangsReportForPeopleIsNamed) {
  const Json result = Json::parse(R"({"status":"failed","exit_code":1,"first_failure":{
      "generation":2,"rank":-1,"reason":"hung","report":"reports/hang-g2.json","log_tail":[]}})");
  EXPECT_THAT(Summary(result, {"runs/x", "resume", false, 3}),
              Contains("  where each rank stood: runs/x/reports/hang-g2.txt"));
}

TEST(FormatTest, TheSummaryOfASuccessHasItsMetrics) {
  const Json result = Json::parse(R"({"status":"succeeded","exit_code":0,"restarts":1,
      "final_step":468,"metrics":{"test_accuracy":0.87912},"weights_digest":"ab12",
      "time_lost_s":0.75})");
  EXPECT_THAT(Summary(result, {"runs/x", "resume", true, 12}),
              ElementsAre("succeeded after 12 s, 468 steps, test_accuracy 0.8791",
                          "  1 restart, 0.8 s of training lost to failures",
                          "  weights digest ab12", "  results: runs/x"));
}

// A view without a terminal, whose lines end in a file.
class ViewTest : public ::testing::Test {
 protected:
  ViewTest() {
    file_ = memfd_create("lines", MFD_CLOEXEC);
    null_ = open("/dev/null", O_WRONLY | O_CLOEXEC);
    console_ = std::make_unique<Console>(null_, file_);
    view_ = std::make_unique<View>(console_.get(), 1, 1);
  }
  ~ViewTest() override {
    close(file_);
    close(null_);
  }
  std::string Lines() {
    console_->Flush(10);
    std::string text(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(file_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
  void Step(int step, double now) {
    view_->OnEvent(R"({"event":"training_progressed","generation":1,"total_steps":1000,"step":)" +
                       std::to_string(step) + "}",
                   now);
  }

  int file_;
  int null_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<View> view_;
};

TEST_F(ViewTest, PlainProgressComesAtMostEveryTenSeconds) {
  Step(1, 100);
  Step(2, 101);
  Step(11, 109.9);
  Step(12, 111);
  Step(13, 112);
  EXPECT_EQ(Lines(), "ddprun: step 1/1000\nddprun: step 12/1000, 16 min 28 s left\n");
}

TEST_F(ViewTest, OneFailureIsToldOnce) {
  view_->OnEvent(R"({"event":"generation_started","generation":1,"world_size":2,"nodes":["a"]})",
                 0);
  view_->OnEvent(R"({"event":"worker_exited","generation":1,"rank":1,"pid":9,"exit_code":7,
                     "cause":"failed"})",
                 1);
  view_->OnEvent(R"({"event":"worker_exited","generation":1,"rank":0,"pid":8,"exit_code":1,
                     "cause":"failed"})",
                 1);
  view_->OnEvent(R"({"event":"generation_ended","generation":1,"rank":1,
                     "reason":"exited with code 7"})",
                 1);
  EXPECT_EQ(Lines(),
            "ddprun: generation 1: rank 1 (pid 9) exited with code 7; stopping the others\n");
}

TEST_F(ViewTest, TheReasonOfAGenerationsEndIsToldWhenItIsNews) {
  view_->OnEvent(R"({"event":"worker_exited","generation":1,"rank":1,"pid":9,"exit_code":1,
                     "cause":"failed"})",
                 1);
  view_->OnEvent(R"({"event":"generation_ended","generation":1,"rank":1,
                     "reason":"exited with code 1: loss is nan"})",
                 1);
  EXPECT_THAT(Lines(), HasSubstr("ended: rank 1 exited with code 1: loss is nan"));
}

// S4: those that did not leave in time are named.
TEST_F(ViewTest, RanksThatHadToBeKilledAreNamed) {
  for (int rank = 19; rank >= 0; --rank) {
    const std::string end = rank % 2 == 0 ? R"("signal":"SIGKILL")" : R"("exit_code":0)";
    view_->OnEvent(R"({"event":"worker_exited","generation":2,"cause":"stopped","pid":9,"rank":)" +
                       std::to_string(rank) + "," + end + "}",
                   1);
  }
  view_->OnEvent(R"({"event":"generation_ended","generation":2,"rank":-1,"reason":"stopped"})", 1);
  view_->OnEvent(R"({"event":"generation_ended","generation":3,"rank":-1,"reason":"finished"})", 1);
  EXPECT_EQ(Lines(),
            "ddprun: generation 2: still there when the time to leave was over, and killed: rank "
            "0, 2, 4, 6, 8, 10, 12, 14, 16, 18\nddprun: generation 2 ended: stopped\n");
}

TEST_F(ViewTest, TimeLostIsToldWhenTrainingGoesOn) {
  view_->OnEvent(R"({"event":"training_progressed","generation":2,"step":101,"time_lost_s":0.8})",
                 1);
  EXPECT_THAT(Lines(), HasSubstr("training goes on at step 101; 0.8 s were lost"));
}

TEST_F(ViewTest, WhatIsNoEventIsPassedOver) {
  view_->OnEvent("not json", 0);
  view_->OnEvent("[1]", 0);
  view_->OnEvent(R"({"event":7})", 0);
  view_->OnEvent(R"({"event":"from_a_later_version","x":{}})", 0);
  EXPECT_EQ(Lines(), "");
}

class NodesTest : public ::testing::Test {
 protected:
  NodesTest()
      : file_(memfd_create("lines", MFD_CLOEXEC)), null_(open("/dev/null", O_WRONLY | O_CLOEXEC)) {}
  ~NodesTest() override {
    close(file_);
    close(null_);
  }
  std::string Text() const {
    std::string text(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(file_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
  int file_;
  int null_;
};

// L39: with names that are known beforehand, who is missing; spares; nodes that come back; ranks.
TEST_F(NodesTest, TheMissingAreNamedWhereTheyAreKnown) {
  {
    Console console(null_, file_);
    View view(&console, 2, 3, {"a", "b", "c"});
    view.OnEvent(R"({"event":"node_joined","node":"a","address":"10.0.0.1","slots":2})", 0);
    view.OnEvent(R"({"event":"node_joined","node":"c","address":"10.0.0.3","slots":3})", 0);
    view.SayWhoIsMissing();
    view.OnEvent(
        R"({"event":"generation_started","generation":1,"world_size":5,"nodes":["a","c"]})", 0);
    view.OnEvent(R"({"event":"node_joined","node":"s","address":"10.0.0.9","spare":true})", 0);
    view.OnEvent(R"({"event":"node_lost","node":"c","reason":"silent"})", 0);
    view.OnEvent(R"({"event":"node_joined","node":"c","address":"10.0.0.3","slots":3})", 0);
  }
  EXPECT_EQ(Text(),
            "ddprun: node a at 10.0.0.1 has joined (1 of 3)\n"
            "ddprun: node c at 10.0.0.3 has joined (2 of 3)\n"
            "ddprun: waiting for 1 of 3 nodes, 2 are enough: b is missing\n"
            "ddprun: generation 1: 5 workers on 2 nodes: a (ranks 0-1), c (ranks 2-4)\n"
            "ddprun: node s at 10.0.0.9 has joined as a spare (3 here, 3 wanted)\n"
            "ddprun: node c was lost: silent\n"
            "ddprun: node c at 10.0.0.3 is back (3 of 3)\n");
}

TEST_F(NodesTest, WhoWasRefusedIsShownWithCare) {
  {
    Console console(null_, file_);
    View view(&console, 2, 2);
    view.OnEvent(
        R"({"event":"join_refused","node":"x\u001b[2J","peer":"10.0.0.7:1","reason":"wrong secret","count":3})",
        0);
  }
  EXPECT_EQ(Text(),
            "ddprun: refused node x\\x1b[2J from 10.0.0.7:1: wrong secret (and 2 more like it)\n");
}

// L39: who is here and how many are wanted.
TEST(WaitingTest, WhoIsMissingIsToldUntilAllAreHere) {
  const int file = memfd_create("lines", MFD_CLOEXEC);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  {
    Console console(null, file);
    View view(&console, 2, 2);
    view.OnEvent(R"({"event":"node_joined","node":"a","address":"10.0.0.1"})", 0);
    view.SayWhoIsMissing();
    view.OnEvent(R"({"event":"node_joined","node":"b","address":"10.0.0.2"})", 0);
    view.OnEvent(
        R"({"event":"generation_started","generation":1,"world_size":2,"nodes":["a","b"]})", 0);
    view.SayWhoIsMissing();
  }
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  ASSERT_EQ(pread(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(text,
            "ddprun: node a at 10.0.0.1 has joined (1 of 2)\n"
            "ddprun: waiting for 1 of 2 nodes; here: a\n"
            "ddprun: node b at 10.0.0.2 has joined (2 of 2)\n"
            "ddprun: generation 1: 2 workers on 2 nodes: a, b\n");
  close(file);
  close(null);
}

}  // namespace
}  // namespace ddprun::cli
