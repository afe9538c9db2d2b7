// Which limit of memory killed a worker (S20): on folders that look like cgroups of v1 and v2.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "launcher/agent/out_of_memory.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

class OutOfMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "cgroup-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void V2(const std::string& path, int oom, int kills, const std::string& limit) {
    fs::create_directories(root_ + path);
    std::ofstream(root_ + path + "/memory.events")
        << "low 0\nhigh 0\nmax 9\noom " << oom << "\noom_kill " << kills << "\noom_group_kill 0\n";
    std::ofstream(root_ + path + "/memory.max") << limit << "\n";
  }
  void V1(const std::string& path, int reached, int kills, const std::string& limit) {
    fs::create_directories(root_ + path);
    std::ofstream(root_ + path + "/memory.oom_control")
        << "oom_kill_disable 0\nunder_oom 0\noom_kill " << kills << "\n";
    std::ofstream(root_ + path + "/memory.failcnt") << reached << "\n";
    std::ofstream(root_ + path + "/memory.limit_in_bytes") << limit << "\n";
  }
  std::vector<MemoryGroup> Groups(bool v2, const std::string& path) {
    std::vector<MemoryGroup> groups;
    for (std::string p = path; !p.empty(); p.resize(p.rfind('/'))) {
      groups.push_back({p, root_ + p, v2});
    }
    groups.push_back({"/", root_, v2});
    return groups;
  }
  std::string root_;
};

constexpr const char* kUnlimitedV1 = "9223372036854771712";

// S20.
TEST_F(OutOfMemoryTest, V2NamesTheLimitThatLedToTheKill) {
  V2("/job/run", 0, 0, "max");
  V2("/job", 3, 3, "209715200");
  OomWatch watch;
  watch.Begin(Groups(true, "/job/run"));
  EXPECT_FALSE(watch.Explain(1));
  V2("/job/run", 0, 1, "max");
  V2("/job", 4, 4, "209715200");
  const auto found = watch.Explain(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit_bytes(), 209715200u);
  EXPECT_EQ(found->text(), "OOM-killed, limit 200 MiB (cgroup /job)");
  EXPECT_FALSE(watch.Explain(2)) << "one kill explains one death";
}

TEST_F(OutOfMemoryTest, V1NamesTheLimitThatWasReached) {
  V1("/job", 10, 2, "1610612736");
  OomWatch watch;
  watch.Begin(Groups(false, "/job"));
  EXPECT_FALSE(watch.Explain(1));
  V1("/job", 50, 4, "1610612736");
  const auto found = watch.Explain(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text(), "OOM-killed, limit 1.5 GiB (cgroup /job)");
  EXPECT_TRUE(watch.Explain(2));
  EXPECT_FALSE(watch.Explain(3));
}

TEST_F(OutOfMemoryTest, V1WithoutACountOfFailuresGoesByThePeak) {
  V1("/job/run", 0, 0, "1073741824");
  V1("/job", 0, 0, "209715200");
  std::ofstream(root_ + "/job/run/memory.max_usage_in_bytes") << "209000000\n";
  std::ofstream(root_ + "/job/memory.max_usage_in_bytes") << "209000000\n";
  OomWatch watch;
  watch.Begin(Groups(false, "/job/run"));
  V1("/job/run", 0, 1, "1073741824");
  const auto found = watch.Explain(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text(), "OOM-killed, limit 200 MiB (cgroup /job)");
}

TEST_F(OutOfMemoryTest, WithoutALimitItIsTheMachine) {
  V1("/job", 0, 0, kUnlimitedV1);
  OomWatch watch;
  watch.Begin(Groups(false, "/job"));
  V1("/job", 0, 1, kUnlimitedV1);
  const auto found = watch.Explain(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit_bytes(), 0u);
  EXPECT_EQ(found->text(),
            "OOM-killed, the memory of the machine (or of a cgroup around it) was full");
}

TEST_F(OutOfMemoryTest, FoldersThatAreNotThereExplainNothing) {
  OomWatch watch;
  watch.Begin(std::vector<MemoryGroup>{{"/x", root_ + "/none", true}});
  EXPECT_FALSE(watch.Explain(1));
  watch.Begin(std::vector<MemoryGroup>());
  EXPECT_FALSE(watch.Explain(1));
}

std::string Names(const std::vector<MemoryGroup>& groups) {
  std::string text;
  for (const MemoryGroup& g : groups) text += g.name + "=" + g.folder + (g.v2 ? "(2) " : "(1) ");
  return text;
}

TEST(MemoryGroupsTest, AreFoundWhereverTheyAreMounted) {
  const std::string v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
  const std::string hybrid =
      "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(Names(FindMemoryGroups("0::/a/b\n", v2)),
            "/a/b=/sys/fs/cgroup/a/b(2) /a=/sys/fs/cgroup/a(2) /=/sys/fs/cgroup(2) ");
  EXPECT_EQ(Names(FindMemoryGroups("4:memory:/a\n0::/z\n", hybrid)),
            "/a=/sys/fs/cgroup/memory/a(1) /=/sys/fs/cgroup/memory(1) ");
  EXPECT_EQ(Names(FindMemoryGroups("4:cpu,memory:/\n", hybrid)), "/=/sys/fs/cgroup/memory(1) ");
  // A container sees its own cgroup as the root of the mount.
  EXPECT_EQ(Names(FindMemoryGroups("5:memory:/docker/c1/w\n",
                                   "9 8 0:1 /docker/c1 /sys/fs/my\\040cgroup ro - cgroup c "
                                   "rw,memory\n")),
            "/w=/sys/fs/my cgroup/w(1) /=/sys/fs/my cgroup(1) ");
  EXPECT_EQ(Names(FindMemoryGroups("0::/../other\n", v2)), "/=/sys/fs/cgroup(2) ");
  EXPECT_EQ(Names(FindMemoryGroups("", v2)), "");
  EXPECT_EQ(Names(FindMemoryGroups("0::/a\n", "nonsense\n- - -\n")), "");
}

TEST(KernelLogTest, NamesTheProcess) {
  const std::string record =
      "3,1021,66000,-;Memory cgroup out of memory: Killed process 4321 (python3) "
      "total-vm:2097152kB, anon-rss:204800kB\n";
  EXPECT_TRUE(NamesOomKilled(record, 4321));
  EXPECT_FALSE(NamesOomKilled(record, 432));
  EXPECT_FALSE(NamesOomKilled("6,1,1,-;process 4321 exited\n", 4321));
  EXPECT_TRUE(NamesOomKilled("Killed process 7, UID 0", 7));
}

TEST(FormatBytesTest, Units) {
  EXPECT_EQ(FormatBytes(209715200), "200 MiB");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 40), "3 TiB");
}

}  // namespace
}  // namespace ddprun::agent
