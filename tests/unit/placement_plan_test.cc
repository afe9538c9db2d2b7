// GPUs, CPUs and threads of a node's workers together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "launcher/placement/plan.h"

namespace ddprun::placement {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two sockets, four GPUs on each, 8 cores of 2 threads on each.
Machine Server() {
  Machine machine;
  machine.topology = *TopologyFromText("package:2 numa:1 core:8 pu:2");
  machine.allowed.resize(32);
  std::iota(machine.allowed.begin(), machine.allowed.end(), 0);
  for (int i = 0; i < 8; ++i) {
    machine.gpus.gpus.push_back({"GPU-" + std::to_string(i), "", "H200", i / 4, {}});
  }
  return machine;
}

v1::JobSpec Program() {
  v1::JobSpec spec;
  spec.add_program("python3");
  spec.set_device("cuda");
  spec.mutable_launching()->set_choose_omp_threads(true);
  return spec;
}

std::string VisibleOf(const WorkerPlace& place) {
  const auto found = place.variables.find("CUDA_VISIBLE_DEVICES");
  return found == place.variables.end() ? "unset" : found->second;
}

std::string ThreadsOf(const WorkerPlace& place) {
  const auto found = place.variables.find("OMP_NUM_THREADS");
  return found == place.variables.end() ? "unset" : found->second;
}

std::string ErrorOf(const Machine& machine, const v1::JobSpec& spec, uint32_t workers) {
  const auto plan = PlanNode(machine, spec, workers);
  return plan.ok() ? "no error" : std::string(plan.status().message());
}

// As under torchrun: all workers see the same, LOCAL_RANK chooses.
TEST(PlanTest, EveryWorkerSeesAllDevicesOfTheJob) {
  v1::JobSpec spec = Program();
  EXPECT_EQ(VisibleOf(PlanNode(Server(), spec, 8)->workers[3]), "unset");
  spec.add_gpus("5");
  spec.add_gpus("1");
  const auto plan = PlanNode(Server(), spec, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(VisibleOf(plan->workers[0]), "5,1");
  EXPECT_EQ(VisibleOf(plan->workers[1]), "5,1");
  EXPECT_EQ(DescribePlace(plan->workers[0]), "GPU 5, NUMA node 1, CPUs 16-31");
  EXPECT_EQ(DescribePlace(plan->workers[1]), "GPU 1, NUMA node 0, CPUs 0-15");
}

TEST(PlanTest, TheVariableOfTheNodesOwnAgentIsKept) {
  Machine machine = Server();
  machine.visible_devices = "6,2";
  v1::JobSpec spec = Program();
  EXPECT_EQ(VisibleOf(PlanNode(machine, spec, 2)->workers[0]), "6,2");
  spec.mutable_launching()->set_virtual_local_rank(true);
  const auto each = PlanNode(machine, spec, 2);
  EXPECT_EQ(VisibleOf(each->workers[0]), "6");
  EXPECT_EQ(VisibleOf(each->workers[1]), "2");
  EXPECT_EQ(each->workers[1].node, 0);
  EXPECT_THAT(ErrorOf(machine, spec, 3), AllOf(HasSubstr("--virtual-local-rank"), HasSubstr("3")));
}

TEST(PlanTest, VirtualLocalRankWithoutGpusIsTorchruns) {
  Machine machine = Server();
  v1::JobSpec spec = Program();
  spec.set_device("cpu");
  spec.mutable_launching()->set_virtual_local_rank(true);
  EXPECT_EQ(VisibleOf(PlanNode(machine, spec, 2)->workers[1]), "1");
  machine.visible_devices = "7, 5";
  EXPECT_EQ(VisibleOf(PlanNode(machine, spec, 2)->workers[1]), "5");
  EXPECT_THAT(ErrorOf(machine, spec, 3), HasSubstr("CUDA_VISIBLE_DEVICES=7, 5 names 2 devices"));
}

TEST(PlanTest, MoreWorkersThanGpusIsAnErrorForTheTrainerAndANoteForPrograms) {
  const auto program = PlanNode(Server(), Program(), 9);
  ASSERT_TRUE(program.ok());
  EXPECT_THAT(program->notes, Contains(HasSubstr("9 workers share 8 GPUs")));
  v1::JobSpec trainer = Program();
  trainer.clear_program();
  trainer.set_train_config_json("{}");
  EXPECT_THAT(ErrorOf(Server(), trainer, 9),
              AllOf(HasSubstr("--nproc 9"), HasSubstr("8 GPUs can be used")));
}

TEST(PlanTest, SeveralMigInstancesWithoutOneEachAreWorthANote) {
  Machine machine = Server();
  machine.gpus.gpus[0].slices = {"MIG-a", "MIG-b"};
  v1::JobSpec spec = Program();
  spec.add_gpus("MIG-b");
  spec.add_gpus("MIG-a");
  EXPECT_THAT(PlanNode(machine, spec, 2)->notes, Contains(HasSubstr("--virtual-local-rank")));
  spec.mutable_launching()->set_virtual_local_rank(true);
  const auto plan = PlanNode(machine, spec, 2);
  EXPECT_THAT(plan->notes, IsEmpty());
  EXPECT_EQ(VisibleOf(plan->workers[0]), "MIG-b");
}

// By default workers are bound only where some CPUs are nearer than others.
TEST(PlanTest, WithGpusAndSeveralNumaNodesWorkersStandNextToTheirGpu) {
  EXPECT_EQ(PlanNode(Server(), Program(), 8)->binding, Binding::kNode);
  v1::JobSpec cpu = Program();
  cpu.set_device("cpu");
  EXPECT_EQ(PlanNode(Server(), cpu, 8)->binding, Binding::kNone);
  Machine one_node = Server();
  one_node.allowed.resize(16);
  EXPECT_EQ(PlanNode(one_node, Program(), 8)->binding, Binding::kNone);
  Machine silent = Server();
  for (Gpu& gpu : silent.gpus.gpus) gpu.node = -1;
  EXPECT_EQ(PlanNode(silent, Program(), 8)->binding, Binding::kNone);
  v1::JobSpec none = Program();
  none.mutable_launching()->set_cpu_binding("none");
  EXPECT_THAT(PlanNode(Server(), none, 1)->workers[0].cpus, IsEmpty());
}

TEST(PlanTest, AWishedBindingWorksWithoutGpusToo) {
  v1::JobSpec spec = Program();
  spec.set_device("cpu");
  spec.mutable_launching()->set_cpu_binding("exclusive");
  const auto plan = PlanNode(Server(), spec, 3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(FormatCpus(plan->workers[0].cpus), "0-7");
  EXPECT_EQ(FormatCpus(plan->workers[1].cpus), "8-15");
  EXPECT_EQ(FormatCpus(plan->workers[2].cpus), "16-31");
  EXPECT_EQ(ThreadsOf(plan->workers[0]), "4");
  EXPECT_EQ(ThreadsOf(plan->workers[2]), "8");
  EXPECT_THAT(plan->threads, HasSubstr("OMP_NUM_THREADS=4 to 8"));
}

TEST(PlanTest, ThreadsAreTheCoresDividedAmongTheWorkers) {
  v1::JobSpec spec = Program();
  spec.set_device("cpu");
  EXPECT_EQ(ThreadsOf(PlanNode(Server(), spec, 4)->workers[0]), "4") << "16 cores, 4 workers";
  EXPECT_EQ(ThreadsOf(PlanNode(Server(), spec, 64)->workers[0]), "1") << "never none";
  EXPECT_THAT(PlanNode(Server(), spec, 4)->threads,
              AllOf(HasSubstr("OMP_NUM_THREADS=4"), HasSubstr("4 workers"), HasSubstr("16 cores"),
                    HasSubstr("set OMP_NUM_THREADS to choose")));
  Machine limited = Server();
  limited.cpu_quota = 6.5;
  const auto quota = PlanNode(limited, spec, 2);
  EXPECT_EQ(ThreadsOf(quota->workers[0]), "3");
  EXPECT_THAT(quota->threads, HasSubstr("CPU quota 6.5"));
  EXPECT_EQ(ThreadsOf(PlanNode(limited, spec, 1)->workers[0]), "6");
  // One worker without a limit finds out by itself, as under torchrun.
  EXPECT_EQ(ThreadsOf(PlanNode(Server(), spec, 1)->workers[0]), "unset");
  spec.mutable_launching()->set_choose_omp_threads(false);
  EXPECT_EQ(ThreadsOf(PlanNode(limited, spec, 2)->workers[0]), "unset");
}

// Bit-identity: the trainer's threads never depend on the machine.
TEST(PlanTest, TheTrainerAlwaysHasOneThread) {
  v1::JobSpec spec = Program();
  spec.clear_program();
  spec.set_train_config_json("{}");
  spec.set_device("cpu");
  EXPECT_EQ(ThreadsOf(PlanNode(Server(), spec, 2)->workers[1]), "1");
  EXPECT_EQ(ThreadsOf(PlanNode(Server(), spec, 1)->workers[0]), "unset");
}

TEST(PlanTest, BoundWorkersShareTheCoresOfTheirNode) {
  const auto plan = PlanNode(Server(), Program(), 8);
  EXPECT_EQ(ThreadsOf(plan->workers[7]), "2") << "8 cores of a node, 4 workers on it";
  EXPECT_THAT(plan->threads, HasSubstr("bound by node"));
}

}  // namespace
}  // namespace ddprun::placement
