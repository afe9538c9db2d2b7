// What the machine offers, with made-up /proc, /sys and /dev.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/placement/cores.h"
#include "launcher/placement/machine.h"
#include "launcher/placement/visible.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::placement {
namespace {

using cli::Folder;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MachineTest, WithoutADriverThereIsNoGpuAndTheTextSaysWhatWasLookedAt) {
  Folder root;
  root.Write("dev/nvidia0", "");  // left over
  const GpuList gpus = ListGpus(root.path(), nullptr, "no library");
  EXPECT_TRUE(gpus.gpus.empty());
  EXPECT_THAT(gpus.looked_at, AllOf(HasSubstr("/proc/driver/nvidia"), HasSubstr("/dev/nvidia<N>"),
                                    HasSubstr("no library")));
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
  const GpuList list = ListGpus(root.path(), nullptr, "");
  EXPECT_EQ(VisibleDevices(list, std::nullopt).size(), 2u);
  EXPECT_EQ(list.driver, "550.54.15");
  EXPECT_EQ(VisibleDevices(list, "0").size(), 1u);
  EXPECT_EQ(VisibleDevices(list, "0,1,2,3").size(), 2u);
  EXPECT_EQ(VisibleDevices(list, "").size(), 0u);
  EXPECT_EQ(VisibleDevices(list, "1,-1,0").size(), 1u);
  EXPECT_EQ(VisibleDevices(list, "GPU-8932f937").size(), 1u);
}

// What the driver says in /proc gives UUIDs, places on the bus and NUMA nodes without NVML.
TEST(MachineTest, WithoutNvmlTheDriversFilesTellGpusApart) {
  Folder root;
  const auto write = [&root](const std::string& bus, const std::string& minor) {
    root.Write(
        "proc/driver/nvidia/gpus/" + bus + "/information",
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-" + bus + "\nDevice Minor: \t " + minor + "\n");
  };
  write("0000:3B:00.0", "1");
  write("0000:17:00.0", "0");
  write("0000:9A:00.0", "2");  // of another container
  root.Write("dev/nvidia0", "");
  root.Write("dev/nvidia1", "");
  root.Write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  root.Write("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1\n");
  const GpuList list = ListGpus(root.path(), nullptr, "");
  ASSERT_EQ(list.gpus.size(), 2u);
  EXPECT_EQ(list.gpus[0].uuid, "GPU-0000:17:00.0");
  EXPECT_EQ(list.gpus[0].node, -1);
  EXPECT_EQ(list.gpus[1].bus_id, "0000:3b:00.0");
  EXPECT_EQ(list.gpus[1].name, "NVIDIA H200");
  EXPECT_EQ(list.gpus[1].node, 1);
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
}  // namespace ddprun::placement
