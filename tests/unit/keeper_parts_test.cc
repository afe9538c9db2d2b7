// The keeper's pure parts besides the stop policy: the spec, and the check of a worker's packets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "launcher/keeper/spec.h"
#include "launcher/keeper/worker_packet.h"

namespace ddprun::keeper {
namespace {

using ::testing::HasSubstr;

std::string Lines(const std::vector<std::string>& lines) {
  std::string bytes;
  for (const std::string& line : lines) bytes.append(line).push_back('\0');
  return bytes;
}

TEST(KeeperSpec, HoldsWhatItSays) {
  const std::string bytes = Lines(
      {"JOB=j", "GENERATION=3", "NODE=n", "GRACE_MS=1500", "LEASE_UNTIL_NS=3000", "FOREGROUND=1",
       "LATER=ignored", "WORKER=4", "ARG=prog", "ARG=a b\n", "ARG=", "ENV=A=1=2", "CWD=/tmp",
       "LOG=/l", "CONSOLE=1", "WORKER=5", "ARG=other", "LOG=/m"});
  std::string problem;
  const std::optional<Spec> spec = ParseSpec(bytes, &problem);
  ASSERT_TRUE(spec) << problem;
  EXPECT_EQ(spec->grace_ms, 1500);
  EXPECT_EQ(spec->lease_until_ns, 3000);
  EXPECT_TRUE(spec->foreground);
  ASSERT_EQ(spec->workers.size(), 2u);
  const WorkerSpec& worker = spec->workers[0];
  EXPECT_EQ(worker.rank, 4);
  ASSERT_EQ(worker.arguments.size(), 3u);
  EXPECT_STREQ(worker.arguments[1], "a b\n");
  EXPECT_STREQ(worker.arguments[2], "");
  EXPECT_STREQ(worker.environment[0], "A=1=2");
  EXPECT_STREQ(worker.directory, "/tmp");
  EXPECT_TRUE(worker.console);
  EXPECT_FALSE(spec->workers[1].console);
  EXPECT_EQ(spec->workers[1].directory, nullptr);
}

TEST(KeeperSpec, RefusesWhatMakesNoSense) {
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"JOB=j"},
      {"ARG=before a worker", "WORKER=0", "LOG=/l"},
      {"WORKER=0", "LOG=/l"},
      {"WORKER=0", "ARG=a"},
      {"WORKER=0", "ARG=a", "LOG="},
      {"WORKER=0", "ARG=a", "LOG=/l", "WORKER=0", "ARG=a", "LOG=/l"},
      {"WORKER=-1", "ARG=a", "LOG=/l"},
      {"WORKER=x", "ARG=a", "LOG=/l"},
      {"GRACE_MS=-1", "WORKER=0", "ARG=a", "LOG=/l"},
      {"LEASE_UNTIL_NS=99999999999999999999", "WORKER=0", "ARG=a", "LOG=/l"},
      {"FOREGROUND=yes", "WORKER=0", "ARG=a", "LOG=/l"},
      {"WORKER=0", "ARG=a", "LOG=/l", "ENV=NOVALUE"},
      {"WORKER=0", "ARG=a", "LOG=/l", "no equals"},
  };
  for (const std::vector<std::string>& lines : bad) {
    std::string problem;
    EXPECT_FALSE(ParseSpec(Lines(lines), &problem)) << ::testing::PrintToString(lines);
    EXPECT_NE(problem, "");
  }
  std::string problem;
  EXPECT_FALSE(ParseSpec("WORKER=0", &problem)) << "the last string does not end";
}

TEST(KeeperWorkerPacket, HelloComesFirstOnceAndNamesItsProcess) {
  const std::string hello = "TYPE=Hello\nPROTOCOL=1\nPID=77\n";
  EXPECT_TRUE(CheckWorkerPacket(hello, 77, false).is_hello);
  EXPECT_THAT(CheckWorkerPacket(hello, 78, false).problem, HasSubstr("PID=77"));
  EXPECT_THAT(CheckWorkerPacket(hello, 77, true).problem, HasSubstr("second"));
  EXPECT_THAT(CheckWorkerPacket("TYPE=Hello\nPROTOCOL=2\nPID=77\n", 77, false).problem,
              HasSubstr("version 2"));
  EXPECT_THAT(CheckWorkerPacket("TYPE=Ready\n", 77, false).problem, HasSubstr("before Hello"));
  EXPECT_EQ(CheckWorkerPacket("TYPE=Ready\n", 77, true).problem, "");
}

TEST(KeeperWorkerPacket, RequiredKeysAreRequiredAndUnknownTypesPass) {
  const auto problem = [](std::string_view bytes) {
    return CheckWorkerPacket(bytes, 1, true).problem;
  };
  EXPECT_EQ(problem("TYPE=Publish\nGROUP=g\nNAME=n\nVALUE=\n"), "");
  EXPECT_THAT(problem("TYPE=Publish\nGROUP=g\nNAME=n\n"), HasSubstr("lacks VALUE"));
  EXPECT_THAT(problem("TYPE=ShardsWritten\nSTEP=1\n"), HasSubstr("lacks COUNT"));
  EXPECT_EQ(problem("TYPE=FromTheFuture\n"), "");
  EXPECT_EQ(problem("TYPE=Progress\nSTEP=1\nUNKNOWN=x\n"), "");
  EXPECT_NE(problem("nothing"), "");
  EXPECT_THAT(problem("TYPE=A\nK=" + std::string(70000, 'x') + "\n"), HasSubstr("longer"));
}

}  // namespace
}  // namespace ddprun::keeper
