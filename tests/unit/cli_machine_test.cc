// What the machine offers, with made-up /proc, /sys and /dev.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/machine.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MachineTest, WithoutADriverThereIsNoGpuAndTheTextSaysWhatWasLookedAt) {
  Folder root;
  root.Write("dev/nvidia0", "");  // left over
  const Gpus gpus = LookForGpus(root.path(), std::nullopt);
  EXPECT_EQ(gpus.usable, 0u);
  EXPECT_THAT(gpus.looked_at, AllOf(HasSubstr("/proc/driver/nvidia"), HasSubstr("/dev/nvidia<N>"),
                                    HasSubstr("CUDA_VISIBLE_DEVICES is not set")));
}

// MA2: a container that sees some of the host's GPUs, and CUDA_VISIBLE_DEVICES.
TEST(MachineTest, GpusAreTheDeviceFilesThatAreNotHidden) {
  Folder root;
  root.Write(
      "proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 12\n");
  for (const char* name : {"a", "b", "c", "d"}) {
    root.Write(std::string("proc/driver/nvidia/gpus/0000:") + name + "/information", "");
  }
  for (const char* name : {"nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"}) {
    root.Write(std::string("dev/") + name, "");
  }
  EXPECT_EQ(LookForGpus(root.path(), std::nullopt).usable, 2u);
  EXPECT_EQ(LookForGpus(root.path(), std::nullopt).driver, "550.54.15");
  EXPECT_EQ(LookForGpus(root.path(), "0").usable, 1u);
  EXPECT_EQ(LookForGpus(root.path(), "0,1,2,3").usable, 2u);
  EXPECT_EQ(LookForGpus(root.path(), "").usable, 0u);
  EXPECT_EQ(LookForGpus(root.path(), "1,-1,0").usable, 1u);
  EXPECT_EQ(LookForGpus(root.path(), "GPU-8932f937").usable, 1u);
}

TEST(MachineTest, CoresAreLimitedByTheQuotaOfTheCgroupAndThoseAboveIt) {
  const uint32_t unlimited = CoresAvailable("/nowhere");
  ASSERT_GE(unlimited, 1u);
  Folder v2;
  v2.Write("proc/self/cgroup", "0::/a/b\n");
  v2.Write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  v2.Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CoresAvailable(v2.path()), 1u);
  v2.Write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(CoresAvailable(v2.path()), unlimited);
  Folder v1;
  v1.Write("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/docker/1\n");
  v1.Write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "50000\n");
  v1.Write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoresAvailable(v1.path()), 1u);
  v1.Write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CoresAvailable(v1.path()), unlimited);
}

}  // namespace
}  // namespace ddprun::cli
