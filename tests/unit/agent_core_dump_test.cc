// Where a core went: patterns of /proc/sys/kernel/core_pattern and what is said about them.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "launcher/agent/core_dump.h"

namespace ddprun::agent {
namespace {

CoreFacts Facts(const std::string& pattern, const std::string& directory = "/work dir") {
  CoreFacts facts;
  facts.pattern = pattern;
  facts.directory = directory;
  facts.host = "h1";
  facts.pid = 42;
  facts.signal = SIGSEGV;
  facts.dumped = true;
  facts.limit_bytes = 1 << 20;
  return facts;
}

TEST(CoreDumpTest, PatternsAreFilledIn) {
  EXPECT_EQ(CoreGlob(Facts("core")), "/work dir/core");
  EXPECT_EQ(CoreGlob(Facts("/cores/%e.%p.%s.%t.%h%%")), "/cores/*.42.11.*.h1%");
  EXPECT_EQ(CoreGlob(Facts("a[b]%")), "/work dir/a\\[b]");
  CoreFacts with_pid = Facts("core");
  with_pid.uses_pid = true;
  EXPECT_EQ(CoreGlob(with_pid), "/work dir/core.42");
  with_pid.pattern = "core.%p";
  EXPECT_EQ(CoreGlob(with_pid), "/work dir/core.42");
}

TEST(CoreDumpTest, PipesNameTheCommandToLookWith) {
  EXPECT_EQ(DescribeCore(Facts("|/usr/lib/systemd/systemd-coredump %P %u")),
            "systemd-coredump took the core: coredumpctl info 42");
  EXPECT_NE(DescribeCore(Facts("|/usr/share/apport/apport %p")).find("apport"), std::string::npos);
  EXPECT_NE(DescribeCore(Facts("|/opt/collect -x %p")).find("'/opt/collect'"), std::string::npos);
}

TEST(CoreDumpTest, WhatWasNotDumpedSaysHowToAllowIt) {
  CoreFacts facts = Facts("core");
  facts.dumped = false;
  EXPECT_EQ(DescribeCore(facts), "") << "the program wanted none";
  facts.limit_bytes = 0;
  EXPECT_NE(DescribeCore(facts).find("ulimit -c unlimited"), std::string::npos);
  facts.signal = SIGTERM;
  EXPECT_EQ(DescribeCore(facts), "");
}

TEST(CoreDumpTest, TheFileIsNamedWhereItIsThere) {
  std::string folder = ::testing::TempDir() + "core-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  CoreFacts facts = Facts("core.%e.%p", folder);
  EXPECT_NE(DescribeCore(facts).find("no file"), std::string::npos) << DescribeCore(facts);
  std::ofstream(folder + "/core.python.42") << "x";
  std::ofstream(folder + "/core.python.43") << "x";
  EXPECT_EQ(DescribeCore(facts), "core dump: " + folder + "/core.python.42");
  facts.started_ns = INT64_MAX;
  EXPECT_NE(DescribeCore(facts).find("no file"), std::string::npos) << "an old one is another's";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ddprun::agent
