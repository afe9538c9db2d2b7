// Who is let in, who is not, and what each hears (L38, L39, L48, S16).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/versions.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;
using R = v1::Refusal;

TEST(Versions, MayBeOneMinorApart) {
  EXPECT_EQ(VersionMismatch("1.4.2", "1.5.0"), "");
  EXPECT_EQ(VersionMismatch("1.4.2", "1.3.9"), "");
  EXPECT_THAT(VersionMismatch("1.4.2", "1.6.0"), HasSubstr("1.6.0"));
  EXPECT_THAT(VersionMismatch("1.4.2", "2.4.2"), HasSubstr("1.4.2"));
  EXPECT_EQ(VersionMismatch("1.4.2", "9999999999999999999999.1"), "");  // no version: not judged
  EXPECT_EQ(VersionsMismatch({{"nccl", "2.20"}}, {{"nccl", "2.20"}, {"cuda", "12"}}), "");
  EXPECT_EQ(VersionsMismatch({{"nccl", "2.20"}}, {{"nccl", "2.21"}}), "nccl 2.21 and not 2.20");
}

// S16: one line that says what is wrong; and the next one comes in as if nothing had been.
TEST(Join, IsRefusedWithAKindAndWhatHelps) {
  struct Row {
    const char* name;
    void (*change)(v1::Hello&);
    R::Kind kind;
    const char* text;
  };
  const Row rows[] = {
      {"name", [](v1::Hello& h) { h.set_node("a\x1b[1m"); }, R::NAME, "--node"},
      {"protocol", [](v1::Hello& h) { h.set_protocol_version(9); }, R::VERSION, "same ddprun"},
      {"version", [](v1::Hello& h) { h.set_version("0.1.0"); }, R::VERSION, "0.1.0"},
      {"job", [](v1::Hello& h) { h.set_job_id("other"); }, R::JOB, "other"},
      {"no slots", [](v1::Hello& h) { h.set_slots(0); }, R::LIMIT, "--nproc"},
      {"slots", [](v1::Hello& h) { h.set_slots(4'000'000'000); }, R::LIMIT, "--nproc"},
      {"rank", [](v1::Hello& h) { h.set_node_rank_wanted(2); }, R::RANK, "--node-rank"},
      {"incarnation", [](v1::Hello& h) { h.set_incarnation(""); }, R::MALFORMED, "Hello"},
      {"address", [](v1::Hello& h) { h.set_address(std::string(1000, 'x')); }, R::MALFORMED, ""},
  };
  for (const Row& row : rows) {
    CoreHarness job;
    job.Submit();
    job.state.version = "3.2.1";
    v1::Hello hello = CoreHarness::HelloOf("a");
    row.change(hello);
    job.JoinWith(hello);
    const v1::Refusal refusal = job.RefusalOf(hello.node());
    EXPECT_EQ(refusal.kind(), row.kind) << row.name;
    EXPECT_THAT(refusal.reason(), HasSubstr(row.text)) << row.name;
    EXPECT_EQ(refusal.reason().find('\x1b'), std::string::npos) << row.name;
    EXPECT_EQ(refusal.exit_code(), 2) << row.name;
    EXPECT_EQ(refusal.retry_seconds(), 0) << row.name;
    EXPECT_EQ(job.Count("join_refused"), 1) << row.name;
    EXPECT_TRUE(job.state.nodes.empty()) << row.name;
    job.Join("a");
    EXPECT_EQ(job.Count("node_joined"), 1) << row.name;
  }
}

// The trainer's libraries must be the same everywhere; programs bring their own.
TEST(Join, ComparesLibrariesForTheTrainer) {
  for (const bool trainer : {true, false}) {
    CoreHarness job(3);
    if (!trainer) job.spec.clear_train_config_json();
    job.Submit();
    v1::Hello hello = CoreHarness::HelloOf("a");
    (*hello.mutable_versions())["libtorch"] = "2.4.1";
    job.JoinWith(hello);
    hello = CoreHarness::HelloOf("b");
    (*hello.mutable_versions())["libtorch"] = "2.5.0";
    job.JoinWith(hello);
    EXPECT_EQ(job.RefusalOf("b").kind(), trainer ? R::VERSION : R::KIND_UNSPECIFIED);
    const std::string reason = trainer ? "node b has libtorch 2.5.0 and not 2.4.1 as node a" : "";
    EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr(reason));
  }
}

// L38, and an agent that attaches after the end: it hears the job's exit code.
TEST(Join, AfterTheEndHearsTheJobsExitCode) {
  CoreHarness job;
  job.Start();
  job.Ask(v1::ControlRequest::KILL, 15);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  job.Clear();
  job.Join("late");
  EXPECT_EQ(job.RefusalOf("late").kind(), R::JOB_OVER);
  EXPECT_EQ(job.RefusalOf("late").exit_code(), 143);
  EXPECT_EQ(job.Count("join_refused"), 0);  // job_finished stays the last event
}

// L48: a rank is wished once.
TEST(NodeRank, ThatIsWishedTwiceIsRefused) {
  CoreHarness job(3);
  job.Submit();
  v1::Hello hello = CoreHarness::HelloOf("a");
  hello.set_node_rank_wanted(1);
  job.JoinWith(hello);
  hello = CoreHarness::HelloOf("b");
  hello.set_node_rank_wanted(1);
  job.JoinWith(hello);
  EXPECT_EQ(job.RefusalOf("b").kind(), R::RANK);
  EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr("node rank 1 is wished by node a already"));
  job.Join("b");
  job.Join("c");
  job.Choose();
  EXPECT_THAT(job.Members(), testing::ElementsAre("b", "a", "c"));
}

// R1: an agent that was restarted is its own namesake: it waits for the lease of its old self.
TEST(Namesake, ThatIsTheSuccessorIsLetInWhenTheLeaseIsOver) {
  CoreHarness job;
  job.Start();
  job.Detach("b");
  job.Join("b", "2");
  EXPECT_EQ(job.RefusalOf("b").kind(), R::NAME);
  EXPECT_GT(job.RefusalOf("b").retry_seconds(), 3);
  EXPECT_EQ(job.Count("join_refused"), 1);
  job.PassSilently(1, {"b"});
  job.Join("b", "2");
  EXPECT_GT(job.RefusalOf("b").retry_seconds(), 2);
  EXPECT_EQ(job.Count("join_refused"), 1);  // told once
  job.PassSilently(3.5, {"b"});
  job.Clear();
  job.Join("b", "2");
  EXPECT_EQ(job.RefusalOf("b").kind(), R::KIND_UNSPECIFIED);
  EXPECT_FALSE(job.outcome);
}

// Two nodes of one name: the second is refused for good as soon as the first one is heard from.
TEST(Namesake, ThatLivesKeepsItsName) {
  CoreHarness job;
  job.Start();
  job.Join("b", "2");
  EXPECT_GT(job.RefusalOf("b").retry_seconds(), 0);
  job.Pass(1.1);
  job.Join("b", "2");
  EXPECT_EQ(job.RefusalOf("b").kind(), R::NAME);
  EXPECT_EQ(job.RefusalOf("b").retry_seconds(), 0);
  EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr("--node"));
  EXPECT_EQ(job.state.nodes.at("b").incarnation, "1");
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// After kill -9 of the coordinator the same command is started again on each node, where the first
// one still waits: it takes part, and the second one is told so, not to take another name.
TEST(Namesake, OfANodeThatHasWaitedForTheCoordinatorIsNotNeeded) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  v1::Hello waited = CoreHarness::HelloOf("b");
  waited.set_leader_token("of the one before");
  job.JoinWith(waited);
  job.Choose();
  job.Join("b", "2");
  job.Pass(1.1);
  job.Join("b", "2");
  EXPECT_EQ(job.RefusalOf("b").kind(), R::NAME);
  EXPECT_EQ(job.RefusalOf("b").retry_seconds(), 0);
  EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr("not needed"));
  EXPECT_EQ(job.state.nodes.at("b").incarnation, "1");
  EXPECT_EQ(job.Count("generation_started"), 1);
  job.PassSilently(5, {"b"});
  job.Clear();
  job.Join("b", "2");
  EXPECT_EQ(job.RefusalOf("b").kind(), R::KIND_UNSPECIFIED);
}

v1::Hello At(const std::string& node, const std::string& address) {
  v1::Hello hello = CoreHarness::HelloOf(node);
  hello.set_address(address);
  return hello;
}

// Loopback addresses are refused where they cannot work.
TEST(Address, OfTheLoopbackIsRefusedBesideOthers) {
  CoreHarness job(3);
  job.Submit();
  job.JoinWith(At("a", "10.0.0.1"));
  job.JoinWith(At("b", "127.0.0.1"));
  EXPECT_EQ(job.RefusalOf("b").kind(), R::ADDRESS);
  EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr("127.0.0.1"));
}

// … the one that came first has to go where nothing runs on it yet …
TEST(Address, OfTheLoopbackMakesRoomBeforeTheStart) {
  CoreHarness job(3);
  job.Submit();
  job.JoinWith(At("a", "127.0.1.1"));
  job.JoinWith(At("b", "10.0.0.2"));
  EXPECT_EQ(job.RefusalOf("a").kind(), R::ADDRESS);
  EXPECT_THAT(std::string(job.Event("node_lost")["reason"]), HasSubstr("127.0.1.1"));
  EXPECT_EQ(job.RefusalOf("b").kind(), R::KIND_UNSPECIFIED);
  EXPECT_EQ(job.state.nodes.size(), 1u);
}

// … and a job that runs on loopback addresses goes on.
TEST(Address, OfTheLoopbackStaysWhereTheJobRunsOnIt) {
  CoreHarness job(2);
  job.spec.set_nodes_min(1);
  job.Submit();
  job.JoinWith(At("a", "127.0.0.1"));
  job.Pass(3.1);
  job.Choose();
  ASSERT_EQ(job.state.phase, Phase::kRunning);
  job.JoinWith(At("b", "10.0.0.2"));
  EXPECT_EQ(job.RefusalOf("b").kind(), R::ADDRESS);
  EXPECT_THAT(job.RefusalOf("b").reason(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// A flood of strangers is one line a second and kind, with their number.
TEST(Refusals, AreToldOnceASecondWithTheirNumber) {
  CoreHarness job;
  job.Start();
  for (int i = 0; i < 1000; ++i) {
    job.RefuseAtTheDoor({"x\n", "10.9.9.9", R::SECRET, "wrong secret"});
  }
  job.RefuseAtTheDoor({"", "10.9.9.9", R::MALFORMED, "no ddprun"});
  EXPECT_EQ(job.Count("join_refused"), 2);
  job.Pass(1.1);
  EXPECT_EQ(job.Count("join_refused"), 3);
  EXPECT_EQ(job.Event("join_refused")["count"], 999);
  EXPECT_EQ(job.Event("join_refused")["kind"], "secret");
  EXPECT_EQ(job.Event("join_refused")["node"], "x\\x0a");
  job.Pass(5);
  EXPECT_EQ(job.Count("join_refused"), 3);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

}  // namespace
}  // namespace ddprun::coordinator
