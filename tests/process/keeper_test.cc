// ddprun-keeper with real processes: how workers start, what they find, what they say, and how
// their ends are told.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(KeeperStart, TellsStartedThenExitedThenGone) {
  KeeperProcess keeper({.workers = {Shell("exit 0")}});
  keeper.AwaitGone();
  const Message started = keeper.Await("Started", 0);
  const Message exited = keeper.Await("Exited", 0);
  EXPECT_EQ(started.Integer("PID"), exited.Integer("PID"));
  EXPECT_GE(exited.Integer("TIME_NS"), started.Integer("TIME_NS"));
  EXPECT_LT(keeper.Position("Started", 0), keeper.Position("Exited", 0));
}

// A child between fork and exec holds copies of the keeper's descriptors; those of the dead must
// not be told of again.
TEST(KeeperStart, ManyShortWorkersEachStartAndEndOnce) {
  KeeperProcess keeper({.workers = std::vector<WorkerOptions>(64, {.arguments = {"true"}})});
  keeper.AwaitGone();
  for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(keeper.Await("Exited", rank).Integer("CODE"), 0);
}

// S5: the exit codes and signals that a launcher must tell apart.
TEST(KeeperExit, ReportsEachCodeAndSignalAsItWas) {
  KeeperProcess keeper(
      {.workers = {Shell("exit 0"), Shell("exit 1"), Shell("exit 7"), Shell("exit 85"),
                   Shell("kill -KILL $$"), Shell("kill -SEGV $$"), Shell("kill -ABRT $$")}});
  keeper.AwaitGone();
  for (const auto& [rank, code] :
       std::vector<std::pair<int, int>>{{0, 0}, {1, 1}, {2, 7}, {3, 85}}) {
    EXPECT_EQ(keeper.Await("Exited", rank).Integer("CODE"), code) << "rank " << rank;
    EXPECT_FALSE(keeper.Await("Exited", rank).packet.Has("SIGNAL"));
  }
  for (const auto& [rank, number] :
       std::vector<std::pair<int, int>>{{4, SIGKILL}, {5, SIGSEGV}, {6, SIGABRT}}) {
    EXPECT_EQ(keeper.Await("Exited", rank).Integer("SIGNAL"), number) << "rank " << rank;
    EXPECT_FALSE(keeper.Await("Exited", rank).packet.Has("CODE"));
  }
}

// L63: the order of deaths is the kernel's, also of those that the keeper notices in one go.
TEST(KeeperExit, DeathsAreToldInTheOrderInWhichTheyHappened) {
  KeeperProcess keeper({.workers = std::vector<WorkerOptions>(5, Shell("exec sleep 999"))});
  std::vector<pid_t> pids(5);
  for (int rank = 0; rank < 5; ++rank) {
    pids[rank] = static_cast<pid_t>(keeper.Await("Started", rank).Integer("PID"));
  }
  kill(keeper.pid(), SIGSTOP);
  const std::vector<int> order = {3, 0, 4, 1, 2};
  for (int rank : order) {
    kill(pids[rank], SIGKILL);
    ASSERT_TRUE(AwaitDeath(pids[rank], kPatience));
  }
  kill(keeper.pid(), SIGCONT);
  keeper.AwaitGone();
  std::vector<int> told;
  int64_t last_ns = 0;
  for (const Message& message : keeper.messages()) {
    if (message.packet.type() != "Exited") continue;
    told.push_back(static_cast<int>(message.Integer("RANK")));
    EXPECT_GT(message.Integer("TIME_NS"), last_ns);
    last_ns = message.Integer("TIME_NS");
  }
  EXPECT_EQ(told, order);
}

TEST(KeeperStart, ProgramThatCannotRunIsToldAndDoesNotStopTheOthers) {
  KeeperOptions options;
  options.workers = {{.arguments = {"no-such-program"}},
                     {.arguments = {"/etc/passwd"}},
                     {.arguments = {"/no/such/file"}},
                     {.arguments = {"/usr"}},
                     {.arguments = {"true"}, .directory = "/no/such/folder"},
                     {.arguments = {"true"}, .log = "/no/such/folder/rank5.log"},
                     Shell("exit 5")};
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  const auto reason = [&](int rank) { return keeper.Await("StartFailed", rank).Text("REASON"); };
  EXPECT_THAT(reason(0), HasSubstr("'no-such-program': no such program in the worker's PATH"));
  EXPECT_THAT(reason(1), HasSubstr("chmod +x /etc/passwd"));
  EXPECT_THAT(reason(2), HasSubstr("there is no such file"));
  EXPECT_THAT(reason(3), HasSubstr("it is a folder"));
  EXPECT_THAT(reason(4), HasSubstr("working directory '/no/such/folder'"));
  EXPECT_THAT(reason(5), HasSubstr("log file '/no/such/folder/rank5.log'"));
  EXPECT_EQ(keeper.Await("StartFailed", 0).Integer("ERRNO"), ENOENT);
  EXPECT_EQ(keeper.Await("StartFailed", 1).Integer("ERRNO"), EACCES);
  EXPECT_EQ(keeper.Await("Exited", 6).Integer("CODE"), 5);
  EXPECT_EQ(keeper.Count("StartFailed"), 6u);
  EXPECT_EQ(keeper.Count("Started"), 1u);
  EXPECT_EQ(keeper.Count("Exited"), 1u);
}

TEST(KeeperStart, ScriptWithMissingInterpreterIsNamedAsSuch) {
  const std::string script = std::filesystem::temp_directory_path() / "ddprun-keeper-script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  chmod(script.c_str(), 0755);
  KeeperProcess keeper({.workers = {{.arguments = {script}}}});
  keeper.AwaitGone();
  std::filesystem::remove(script);
  EXPECT_THAT(keeper.Await("StartFailed", 0).Text("REASON"), HasSubstr("interpreter"));
}

TEST(KeeperStart, ProgramIsFoundInTheWorkersPathAndRunsInItsDirectory) {
  WorkerOptions worker{.arguments = {"own-program"},
                       .environment = {"PATH=/nowhere:."},
                       .directory = std::filesystem::temp_directory_path() / "ddprun-keeper-own"};
  std::filesystem::create_directory(worker.directory);
  std::ofstream(worker.directory + "/own-program") << "#!/bin/sh\npwd\n";
  chmod((worker.directory + "/own-program").c_str(), 0755);
  // The harness's own PATH stands first, and the first of two wins: take it away.
  worker.arguments = {"/usr/bin/env", "-u", "PATH", "PATH=/nowhere:.:/bin", "own-program"};
  KeeperProcess keeper({.workers = {worker}});
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Log(0), worker.directory + "\n");
  std::filesystem::remove_all(worker.directory);
}

TEST(KeeperStart, WorkerHoldsStandardStreamsSocketAndPageAndNothingElse) {
  KeeperOptions options{.workers = {Fake({"fds"}), Fake({"fds"}), Fake({"fds"})}};
  options.before_exec = [] {
    // A descriptor that the agent forgot must not reach a worker.
    if (fcntl(open("/etc/passwd", O_RDONLY), F_DUPFD, 200) < 0) _exit(1);
  };
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  for (int rank = 0; rank < 3; ++rank) {
    std::istringstream lines(keeper.Log(rank));
    std::vector<std::string> targets;
    for (std::string line; std::getline(lines, line);) targets.push_back(line);
    ASSERT_EQ(targets.size(), 7u) << keeper.Log(rank);
    EXPECT_EQ(targets[0], "0 /dev/null");
    EXPECT_THAT(targets[1], StartsWith("1 pipe:"));
    EXPECT_EQ(targets[2].substr(2), targets[1].substr(2));
    EXPECT_THAT(targets[3], StartsWith("3 socket:"));
    EXPECT_THAT(targets[4], StartsWith("4 /memfd:ddprun-step-page"));
    EXPECT_EQ(targets[6], "leader 1 1") << "a group of its own in the keeper's session";
  }
}

TEST(KeeperStart, WorkersFileLimitIsTheOneBeforeTheKeeperRaisedItsOwn) {
  KeeperOptions options{.workers = std::vector<WorkerOptions>(16, Fake({"fds"}))};
  options.before_exec = [] {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = 90;  // the keeper needs more for 16 workers
    setrlimit(RLIMIT_NOFILE, &files);
  };
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Count("StartFailed"), 0u);
  for (int rank = 0; rank < 16; ++rank) EXPECT_THAT(keeper.Log(rank), HasSubstr("files 90\n"));
}

// L11, S8: a job under nohup survives the end of its terminal.
TEST(KeeperStart, IgnoredHangupStaysIgnoredAndAllElseIsDefault) {
  KeeperOptions options{.workers = {Fake({"signals"})}};
  options.before_exec = [] {
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigset_t mask;
    sigfillset(&mask);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
  };
  KeeperProcess keeper(options);
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Log(0), HasSubstr("SigBlk:\t0000000000000000\n"));
  EXPECT_THAT(keeper.Log(0), HasSubstr("SigIgn:\t0000000000000001\n"));
}

TEST(KeeperStart, HangupIsDefaultWhereItWasDefault) {
  KeeperProcess keeper({.workers = {Fake({"signals"})}});
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Log(0), HasSubstr("SigIgn:\t0000000000000000\n"));
}

TEST(KeeperStart, BadSpecEndsWithUsageCode) {
  KeeperProcess keeper({.workers = {}});
  EXPECT_EQ(keeper.AwaitExit(), 2);
}

TEST(KeeperPackets, AllThatAWorkerSaidAndWroteComesBeforeItsExit) {
  constexpr int kPackets = 50;
  KeeperProcess keeper({.workers = std::vector<WorkerOptions>(
                            4, Fake({"burst", std::to_string(kPackets)}, /*console=*/true))});
  keeper.AwaitGone();
  for (int rank = 0; rank < 4; ++rank) {
    int packets = 0;
    std::string console;
    for (const Message& message : keeper.messages()) {
      if (message.Integer("RANK") != rank) continue;
      if (message.packet.type() == "Packet") ++packets;
      if (message.packet.type() == "Console") console += message.Body();
      if (message.packet.type() == "Exited") break;
    }
    EXPECT_EQ(packets, kPackets + 1) << "Hello and each Progress";
    EXPECT_THAT(console, HasSubstr("\nline 50\n"));
    EXPECT_EQ(keeper.Await("Exited", rank).Integer("SIGNAL"), SIGKILL);
  }
}

TEST(KeeperPackets, ChildThatInheritedTheSocketIsNotTheWorker) {
  KeeperProcess keeper({.workers = {Fake({"child-speaks"})}});
  keeper.AwaitGone();
  EXPECT_EQ(keeper.AwaitFromWorker("Progress", 0).Integer("STEP"), 1);
  EXPECT_EQ(keeper.Count("Packet"), 2u) << "Hello and one Progress";
}

TEST(KeeperPackets, VoidPacketsAreCountedAndToldNotPassedOn) {
  KeeperProcess keeper({.workers = {Fake({"void-packets"})}});
  keeper.AwaitGone();
  EXPECT_EQ(keeper.AwaitFromWorker("Progress", 0).Integer("STEP"), 8);
  EXPECT_EQ(keeper.Count("Packet"), 2u);
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("VOID_PACKETS"), 4);
  EXPECT_THAT(keeper.Console(0), HasSubstr("rank 0: a packet is void: Progress lacks STEP\n"));
  EXPECT_EQ(keeper.Log(0), "") << "the log is the worker's alone";
}

TEST(KeeperPackets, AgentsPacketsReachTheirWorkerInOrder) {
  KeeperProcess keeper({.workers = {Fake({"echo", "2"}), Fake({"echo", "1"})}});
  keeper.AwaitFromWorker("Hello", 0);
  keeper.AwaitFromWorker("Hello", 1);
  keeper.SendToWorker(1, "TYPE=Value\n");
  keeper.SendToWorker(0, "TYPE=EdgeRequest\n");
  keeper.SendToWorker(7, "TYPE=Nobody\n");
  keeper.SendToWorker(0, "TYPE=CheckpointAt\n");
  keeper.AwaitGone();
  std::string said;
  for (const Message& message : keeper.messages()) {
    if (message.packet.type() == "Packet" && message.Integer("RANK") == 0) said += message.Body();
  }
  EXPECT_THAT(said, ::testing::EndsWith("MESSAGE=TYPE=EdgeRequest\n"
                                        "TYPE=Failed\nKIND=error\nMESSAGE=TYPE=CheckpointAt\n"));
  EXPECT_EQ(keeper.AwaitFromWorker("Failed", 1).Text("MESSAGE"), "TYPE=Value");
}

TEST(KeeperPackets, WorkerThatNeverReadsCostsAtMostItsQueue) {
  KeeperProcess keeper({.workers = {Fake({"ignore"})}});
  keeper.AwaitFromWorker("Hello", 0);
  const std::string packet = "TYPE=Value\nVALUE=" + std::string(60000, 'A') + "\n";
  for (int i = 0; i < 200; ++i) keeper.SendToWorker(0, packet);  // 12 MB
  keeper.Stop("kill");
  keeper.AwaitGone();
  EXPECT_GT(keeper.Await("Exited", 0).Integer("PACKETS_DROPPED"), 100);
}

TEST(KeeperPage, ExitTellsWhatThePageSaid) {
  WorkerOptions torn = Fake({"page"});
  torn.environment = {"LEAVE_INSIDE=1"};
  KeeperProcess keeper({.workers = {Fake({"page"}), torn, Shell("exit 0")}});
  keeper.AwaitGone();
  for (int rank : {0, 1}) {
    const Message exited = keeper.Await("Exited", rank);
    EXPECT_EQ(exited.Integer("SIGNAL"), SIGABRT);
    EXPECT_EQ(exited.Integer("PHASE"), 3);
    EXPECT_EQ(exited.Integer("STEP"), 41);
    EXPECT_EQ(exited.Text("COLLECTIVE"), "AllReduce");
    EXPECT_EQ(exited.Integer("COLLECTIVE_STARTED"), 18);
    EXPECT_EQ(exited.Integer("COLLECTIVE_FINISHED"), 17);
    EXPECT_EQ(exited.Text("TEXT"), "layer 4\nof 5");
  }
  EXPECT_FALSE(keeper.Await("Exited", 2).packet.Has("STEP"));
}

TEST(KeeperSignals, SignalGoesToEveryMainProcess) {  // S9
  const std::string script =
      "trap 'echo got; exit 6' USR2; echo ready; while :; do sleep 0.05; done";
  KeeperProcess keeper({.workers = {Shell(script, true), Shell(script, true)}});
  for (int rank : {0, 1}) keeper.AwaitConsole(rank, "ready");
  keeper.Send(PacketWriter("Signal").Integer("NUMBER", SIGUSR2).Finish());
  keeper.AwaitGone();
  for (int rank : {0, 1}) EXPECT_EQ(keeper.Await("Exited", rank).Integer("CODE"), 6);
}

// A worker without a handler, or one that has not come so far, would die of it.
TEST(KeeperSignals, UsrSignalsKillNoWorkerThatDoesNotListen) {
  KeeperProcess keeper({.workers = {Shell("echo ready; sleep 0.3; exit 5", true),
                                    Shell("trap '' USR1 USR2; echo ready; sleep 0.3; exit 6", true),
                                    Shell("sleep 0.3; exit 7", true)}});
  for (int round = 0; round < 20; ++round) {  // also while they start
    for (int number : {SIGUSR1, SIGUSR2}) {
      keeper.Send(PacketWriter("Signal").Integer("NUMBER", number).Finish());
    }
  }
  for (int rank : {0, 1}) keeper.AwaitConsole(rank, "ready");
  keeper.Send(PacketWriter("Signal").Integer("NUMBER", SIGUSR2).Finish());
  keeper.AwaitGone();
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(keeper.Await("Exited", rank).Integer("CODE"), 5 + rank) << rank;
  }
  const std::string said = keeper.Console(0);
  EXPECT_THAT(said, HasSubstr("SIGUSR1 was not passed on"));
  EXPECT_EQ(said.find("not passed on"), said.rfind("not passed on")) << "once";
}

TEST(KeeperIdle, SleepsWhileNothingHappens) {
  KeeperProcess keeper({.workers = {Shell("sleep 1"), Shell("sleep 999")}, .lease_ms = 60000});
  keeper.Await("Started", 0);
  keeper.Await("Started", 1);
  const int64_t before = StatusNumber(keeper.pid(), "voluntary_ctxt_switches");
  keeper.Await("Exited", 0);
  const int64_t wake_ups = StatusNumber(keeper.pid(), "voluntary_ctxt_switches") - before;
  EXPECT_LE(wake_ups, 5) << "the death of one worker, and no ticks in the second before it";
}

}  // namespace
}  // namespace ddprun::keeper_test
