// Who gets which CPUs, on made-up machines: the meaning of torchrun's --numa-binding, restricted
// cpusets, uneven numbers, and machines without GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "launcher/placement/binding.h"

namespace ddprun::placement {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two sockets with a NUMA node each, 8 cores a node in two core complexes, 2 threads a core: CPUs
// 0-15 are on node 0, 16-31 on node 1.
constexpr const char* kServer = "package:2 numa:1 l3:2 core:4 pu:2";

CpuList Range(int first, int last) {
  CpuList cpus(static_cast<size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

std::vector<std::string> Bound(const std::string& machine, const CpuList& allowed,
                               const std::vector<int>& device_nodes, Binding binding) {
  const auto topology = TopologyFromText(machine);
  if (!topology.ok()) return {std::string(topology.status().message())};
  const auto bound = BindWorkers(*topology, allowed, device_nodes, binding);
  if (!bound.ok()) return {std::string(bound.status().message())};
  std::vector<std::string> texts;
  for (const BoundWorker& worker : bound->workers) texts.push_back(FormatCpus(worker.cpus));
  return texts;
}

TEST(BindingTest, NodeGivesAllCpusNextToTheGpu) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {0, 0, 0, 0, 1, 1, 1, 1}, Binding::kNode),
              ElementsAre("0-15", "0-15", "0-15", "0-15", "16-31", "16-31", "16-31", "16-31"));
  EXPECT_THAT(Bound(kServer, Range(0, 31), {1, 0}, Binding::kNode), ElementsAre("16-31", "0-15"));
}

TEST(BindingTest, SocketGivesAllNodesOfTheSocket) {
  // Two nodes a socket.
  EXPECT_THAT(Bound("package:2 numa:2 core:2 pu:1", Range(0, 7), {0, 1, 3}, Binding::kSocket),
              ElementsAre("0-3", "0-3", "4-7"));
  EXPECT_THAT(Bound("package:2 numa:2 core:2 pu:1", Range(0, 7), {0, 1, 3}, Binding::kNode),
              ElementsAre("0-1", "2-3", "6-7"));
}

// 2 sockets × 4 GPUs: whole cores, no core twice.
TEST(BindingTest, ExclusiveDividesTheCoresOfANode) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {0, 0, 0, 0, 1, 1, 1, 1}, Binding::kExclusive),
              ElementsAre("0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"));
}

// As torchrun has it: the first ones get a core more.
TEST(BindingTest, ExclusiveWithUnevenNumbersGivesTheFirstOnesACoreMore) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {0, 0, 0}, Binding::kExclusive),
              ElementsAre("0-5", "6-11", "12-15"));
  EXPECT_THAT(Bound(kServer, {0, 1, 2, 4, 5}, {0, 0}, Binding::kExclusive),
              ElementsAre("0-2", "4-5"));
}

TEST(BindingTest, ExclusiveWithFewerCoresThanWorkersIsAnErrorThatNamesBoth) {
  const auto text = Bound(kServer, {0, 1, 2, 3}, {0, 0, 0}, Binding::kExclusive);
  EXPECT_THAT(text, ElementsAre(AllOf(HasSubstr("--cpu-binding exclusive"), HasSubstr("node 0"),
                                      HasSubstr("2 cores"), HasSubstr("3 workers"))));
}

TEST(BindingTest, CoreComplexGivesEachWorkerAnotherLastLevelCache) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {0, 0, 0, 1}, Binding::kCoreComplex),
              ElementsAre("0-7", "8-15", "0-7", "16-23"));
  // The one with more allowed CPUs comes first.
  EXPECT_THAT(Bound(kServer, {0, 1, 8, 9, 10, 11}, {0, 0}, Binding::kCoreComplex),
              ElementsAre("8-11", "0-1"));
}

// Containers and taskset: what is not allowed is never given.
TEST(BindingTest, OnlyAllowedCpusAreGiven) {
  const CpuList allowed = {2, 3, 6, 7, 18, 19, 20};
  EXPECT_THAT(Bound(kServer, allowed, {0, 1}, Binding::kNode), ElementsAre("2-3,6-7", "18-20"));
  EXPECT_THAT(Bound(kServer, allowed, {0, 0, 1, 1}, Binding::kExclusive),
              ElementsAre("2-3", "6-7", "18-19", "20"));
}

TEST(BindingTest, AGpuNextToNoAllowedCpuGetsOthersAndANoteSaysSo) {
  const auto topology = TopologyFromText(kServer);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const auto bound = BindWorkers(*topology, Range(0, 15), {0, 1}, Binding::kNode);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(FormatCpus(bound->workers[1].cpus), "0-15");
  EXPECT_THAT(bound->notes, ElementsAre(AllOf(HasSubstr("local rank 1"), HasSubstr("node 1"))));
}

// Without GPUs workers are spread over the nodes by their cores, neighbours together.
TEST(BindingTest, WithoutGpusWorkersAreSpreadOverTheNodes) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {-1, -1, -1, -1}, Binding::kNode),
              ElementsAre("0-15", "0-15", "16-31", "16-31"));
  EXPECT_THAT(Bound(kServer, Range(0, 31), {-1, -1}, Binding::kNode), ElementsAre("0-15", "16-31"));
  // Node 0 has one core left, node 1 eight: the workers go where there is room.
  CpuList allowed = Range(16, 31);
  allowed.insert(allowed.begin(), {0, 1});
  EXPECT_THAT(Bound(kServer, allowed, {-1, -1, -1, -1}, Binding::kExclusive),
              ElementsAre("16-19", "20-23", "24-27", "28-31"));
}

TEST(BindingTest, NoneBindsNobodyAndAnUnknownWordIsAnError) {
  EXPECT_THAT(Bound(kServer, Range(0, 31), {0, 1}, Binding::kNone), ElementsAre("", ""));
  const auto unknown = ParseBinding("numa");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(std::string(unknown.status().message()),
              AllOf(HasSubstr("--cpu-binding numa"), HasSubstr("core-complex")));
}

// Many machines number their CPUs across the sockets.
TEST(TopologyTest, InterleavedNumbersAreRead) {
  const auto interleaved = TopologyFromText("package:2 numa:1 core:2 pu:1(indexes=0,2,1,3)");
  ASSERT_TRUE(interleaved.ok()) << interleaved.status();
  const auto bound = BindWorkers(*interleaved, Range(0, 3), {0, 1}, Binding::kNode);
  EXPECT_EQ(FormatCpus(bound->workers[0].cpus), "0,2");
}

TEST(TopologyTest, ThisMachineCanBeReadAndCpusThatAreAllowedAreInIt) {
  const auto here = ReadTopology();
  ASSERT_TRUE(here.ok()) << here.status();
  const CpuList allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_GE(CountCores(*here, allowed), 1u);
  EXPECT_FALSE(NodesOf(*here, allowed).empty());
  EXPECT_THAT(NodesOf(*here, {}), IsEmpty());
  EXPECT_FALSE(TopologyFromText("nonsense:x").ok());
}

TEST(TopologyTest, CpusAreWrittenAsTheKernelWritesThem) {
  EXPECT_EQ(FormatCpus({}), "");
  EXPECT_EQ(FormatCpus({3}), "3");
  EXPECT_EQ(FormatCpus({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
}

}  // namespace
}  // namespace ddprun::placement
