// What ddprun doctor makes of another machine's answers, and the connection that it tries.
#include "launcher/cli/doctor_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "launcher/cli/doctor_answer.h"
#include "launcher/cli/doctor_lines.h"
#include "launcher/cli/doctor_probe.h"

namespace ddprun::doctor {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{20};

Report Node(const std::string& version, std::map<std::string, std::string> facts) {
  return {version, "b", {}, std::move(facts)};
}

TEST(DoctorPeersTest, VersionsThatDoNotGoTogetherAreProblems) {
  const Report ours = Node("0.2.0", {{"libtorch", "2.11.0"}, {"cuda", "13.0"}});
  const auto level = [&](const Report& theirs) { return JudgeVersions(ours, theirs)[0].level; };
  EXPECT_EQ(level(ours), Level::kOk);
  EXPECT_EQ(level(Node("0.3.7", ours.facts)), Level::kOk);
  EXPECT_EQ(level(Node("0.4.0", ours.facts)), Level::kProblem);
  EXPECT_EQ(level(Node("1.2.0", ours.facts)), Level::kProblem);
  EXPECT_EQ(level(Node("0.2.0", {{"libtorch", "2.10.0"}, {"cuda", "13.0"}})), Level::kProblem);
  EXPECT_EQ(level(Node("0.2.0", {{"libtorch", "2.11.0"}, {"cuda", "12.8"}})), Level::kProblem);
  // A machine without the trainer may run programs.
  EXPECT_EQ(level(Node("0.2.0", {})), Level::kNote);
  Report driver = ours;
  driver.facts["driver"] = "580.1";
  EXPECT_EQ(level(driver), Level::kNote);
}

TEST(DoctorPeersTest, TheQuickestRoundTripTellsTheOffset) {
  // The second took 2 ms, and the peer's clock is 5 s ahead.
  const ClockOffset offset = OffsetOf(
      {{0, 9'000'000'000, 8'000'000'000}, {10'000'000'000, 15'001'000'000, 10'002'000'000}});
  EXPECT_NEAR(offset.seconds, 5, 1e-9);
  EXPECT_NEAR(offset.uncertainty_seconds, 0.001, 1e-9);
}

TEST(DoctorPeersTest, ClocksThatAreFarOffAreProblems) {
  EXPECT_EQ(JudgeOffset({0.01, 0.001}).level, Level::kOk);
  EXPECT_EQ(JudgeOffset({-3, 0.001}).level, Level::kNote);
  EXPECT_EQ(JudgeOffset({3600, 0.001}).level, Level::kProblem);
  EXPECT_THAT(JudgeOffset({-3600, 0.001}).seen, HasSubstr("behind"));
  // What may be the network's doing is not blamed on the clock.
  EXPECT_EQ(JudgeOffset({2, 1.5}).level, Level::kOk);
}

TEST(DoctorPeersTest, NamesAndConnectionsAreJudgedBothWays) {
  EXPECT_EQ(JudgePeerNames({"b", {"10.0.0.2"}, "", "a", {"10.0.0.1"}, ""}).level, Level::kOk);
  EXPECT_EQ(JudgePeerNames({"b", {"10.0.0.2"}, "", "a", {"127.0.1.1"}, ""}).level, Level::kNote);
  EXPECT_EQ(JudgePeerNames({"b", {}, "unknown", "a", {"10.0.0.1"}, ""}).level, Level::kNote);
  EXPECT_EQ(JudgeConnections({"a", "b", ""}, {"b", "a", ""}).level, Level::kOk);
  const Finding half = JudgeConnections({"a", "b", ""}, {"b", "a", "no answer within 3 s"});
  EXPECT_EQ(half.level, Level::kProblem);
  EXPECT_THAT(half.fix, HasSubstr("firewall"));
}

TEST(DoctorPeersTest, ProblemsOfAPeerAreShownHere) {
  Report theirs = Node("0.2.0", {});
  EXPECT_EQ(JudgePeerReport(theirs).level, Level::kOk);
  theirs.findings = {Problem("shared memory", "64 MiB", "m", "f")};
  EXPECT_EQ(JudgePeerReport(theirs).level, Level::kProblem);
  EXPECT_THAT(JudgePeerReport(theirs).seen, HasSubstr("shared memory: 64 MiB"));
}

TEST(DoctorPeersTest, APeerThatCannotBeAskedIsAProblem) {
  Report ours = Node("0.2.0", {});
  std::vector<Finding> findings;
  // `ssh` that says something and ends, one that does not exist, one that talks nonsense.
  for (const char* ssh : {"sh -c 'echo no route >&2; exit 255'", "/no/such/ssh", "echo nonsense"}) {
    AskPeers({"b"}, {ssh, "/bin/ddprun", "/runs"}, ours,
             [&](const Finding& finding) { findings.push_back(finding); });
  }
  ASSERT_EQ(findings.size(), 3U);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.level, Level::kProblem);
    EXPECT_EQ(finding.name, "b: asking it");
  }
  EXPECT_THAT(findings[0].seen, HasSubstr("no route"));
}

TEST(DoctorProbeTest, OnlyTheRightListenerCounts) {
  const auto listener = Listener::Start();
  ASSERT_TRUE(listener.ok()) << listener.status();
  const int port = (*listener)->port();
  EXPECT_EQ(TryConnection("127.0.0.1", port, (*listener)->token(), kDeadline), "");
  EXPECT_EQ(TryConnection("127.0.0.1", port, "0123456789abcdef", kDeadline),
            "something else answers there");
  EXPECT_EQ(TryConnection("nonsense", port, "0123456789abcdef", kDeadline), "is no address");
}

TEST(DoctorProbeTest, ARefusedConnectionIsTold) {
  int port = 0;
  {
    const auto listener = Listener::Start();
    ASSERT_TRUE(listener.ok());
    port = (*listener)->port();
  }
  EXPECT_EQ(TryConnection("127.0.0.1", port, "0123456789abcdef", kDeadline), "Connection refused");
}

class Pipes {
 public:
  Pipes() {
    EXPECT_EQ(pipe(in_), 0);
    EXPECT_EQ(pipe(out_), 0);
    lines_ = std::make_unique<LineReader>(out_[0], kAnswerBytesMax);
    thread_ = std::thread([this] {
      AnswerQuestions(in_[0], out_[1], [] { return Node("0.2.0", {{"cuda", "13.0"}}); });
    });
  }
  ~Pipes() {
    close(in_[1]);
    thread_.join();
    for (const int fd : {in_[0], out_[0], out_[1]}) close(fd);
  }
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;
  nlohmann::json Ask(const std::string& line) {
    EXPECT_EQ(write(in_[1], (line + "\n").data(), line.size() + 1),
              static_cast<ssize_t>(line.size() + 1));
    const auto answer = lines_->Next(std::chrono::steady_clock::now() + kDeadline);
    return answer ? nlohmann::json::parse(*answer) : nlohmann::json();
  }

 private:
  int in_[2];
  int out_[2];
  std::thread thread_;
  std::unique_ptr<LineReader> lines_;
};

TEST(DoctorAnswerTest, QuestionsAreAnsweredAndNonsenseIsRefused) {
  Pipes peer;
  EXPECT_TRUE(peer.Ask(R"({"ask":"clock"})").at("time_ns").is_number_integer());
  EXPECT_EQ(peer.Ask(R"({"ask":"report"})").at("facts").at("cuda"), "13.0");
  const auto listening = peer.Ask(R"({"ask":"listen","towards":"127.0.0.1"})");
  EXPECT_EQ(listening.at("address"), "127.0.0.1");
  EXPECT_EQ(TryConnection("127.0.0.1", listening.at("port").get<int>(),
                          listening.at("token").get<std::string>(), kDeadline),
            "");
  EXPECT_EQ(peer.Ask(R"({"ask":"resolve","name":"127.0.0.1"})").at("addresses")[0], "127.0.0.1");
  for (const char* nonsense :
       {"", "[]", "{", "7", R"({"ask":7})", R"({"ask":"rm"})",
        R"({"ask":"connect","address":7,"port":"x"})", R"({"ask":"connect","port":99999})"}) {
    EXPECT_NE(peer.Ask(nonsense).at("error"), "") << nonsense;
  }
}

}  // namespace
}  // namespace ddprun::doctor
