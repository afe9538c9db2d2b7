// A worker's environment and arguments, as the agent makes them of a StartWorkers. Beside the real
// torchrun they are compared in tests/process/torchrun_environment.py.
#include "launcher/agent/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/agent/worker_spec.h"

namespace ddprun::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

v1::StartWorkers Order() {
  v1::StartWorkers order;
  order.set_job_id("job");
  order.set_generation(3);
  order.set_world_size(5);
  order.set_first_rank(2);
  order.set_local_world_size(3);
  order.set_group_rank(1);
  order.set_group_world_size(2);
  order.set_master_address("10.0.0.1");
  order.set_master_port(4000);
  order.mutable_spec()->set_run_dir("/run");
  order.mutable_spec()->set_device("cpu");
  (*order.mutable_spec()->mutable_environment())["HOME"] = "/root";
  order.mutable_spec()->add_program("prog");
  return order;
}

std::map<std::string, std::string> Of(const v1::StartWorkers& order, uint32_t local_rank) {
  NodeFacts facts;
  facts.node = "n1";
  facts.master_port = 29999;
  return WorkerEnvironment(order, facts, local_rank);
}

// S22, S23.
TEST(WorkerEnvironmentTest, APlaceAmongTheRanksIsToldInTorchrunsWords) {
  const auto environment = Of(Order(), 1);
  const std::pair<const char*, const char*> wanted[] = {
      {"RANK", "3"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "5"},
      {"ROLE_RANK", "3"},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", "5"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"MASTER_PORT", "4000"},
      {"HOME", "/root"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"TORCHELASTIC_ERROR_FILE", "/run/logs/g3/rank3.error.json"}};
  for (const auto& [name, value] : wanted) EXPECT_THAT(environment, Contains(Pair(name, value)));
}

TEST(WorkerEnvironmentTest, WishesReplaceWhatIsChosen) {
  v1::StartWorkers order = Order();
  auto* launching = order.mutable_spec()->mutable_launching();
  launching->set_role("trainer");
  launching->set_master_address("::1");
  (*launching->mutable_torchrun_environment())["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM";
  (*order.mutable_spec()->mutable_environment())["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3";
  order.set_master_port(0);
  const auto environment = Of(order, 0);
  EXPECT_EQ(environment.at("ROLE_NAME"), "trainer");
  EXPECT_EQ(environment.at("MASTER_ADDR"), "::1");
  EXPECT_EQ(environment.at("MASTER_PORT"), "29999") << "the port that the node holds";
  EXPECT_EQ(environment.at("PADDLE_MASTER"), "[::1]:29999");
  EXPECT_EQ(environment.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  EXPECT_EQ(environment.at("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM");
}

TEST(WorkerEnvironmentTest, AVirtualLocalRankSeesOneGpuAsItsFirst) {
  v1::StartWorkers order = Order();
  order.mutable_spec()->set_device("cuda");
  order.mutable_spec()->mutable_launching()->set_virtual_local_rank(true);
  EXPECT_EQ(Of(order, 2).at("CUDA_VISIBLE_DEVICES"), "2");
  (*order.mutable_spec()->mutable_environment())["CUDA_VISIBLE_DEVICES"] = "7,5,3";
  const auto environment = Of(order, 2);
  EXPECT_EQ(environment.at("CUDA_VISIBLE_DEVICES"), "3");
  EXPECT_EQ(environment.at("LOCAL_RANK"), "0");
  EXPECT_EQ(environment.at("FLAGS_selected_gpus"), "0");
}

TEST(WorkerEnvironmentTest, PaddleFindsItsOwnWords) {
  v1::StartWorkers order = Order();
  order.set_group_world_size(1);
  order.set_group_rank(0);
  order.set_first_rank(0);
  order.set_world_size(3);
  const auto environment = Of(order, 1);
  const std::pair<const char*, const char*> wanted[] = {
      {"PADDLE_TRAINER_ID", "1"},
      {"PADDLE_TRAINERS_NUM", "3"},
      {"PADDLE_GLOBAL_RANK", "1"},
      {"PADDLE_GLOBAL_SIZE", "3"},
      {"PADDLE_LOCAL_RANK", "1"},
      {"PADDLE_LOCAL_SIZE", "3"},
      {"PADDLE_RANK_IN_NODE", "1"},
      {"PADDLE_NNODES", "1"},
      {"PADDLE_MASTER", "10.0.0.1:4000"},
      {"PADDLE_CURRENT_ENDPOINT", "10.0.0.1:4002"},
      {"PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:4001,10.0.0.1:4002,10.0.0.1:4003"},
      {"PADDLE_DISTRI_BACKEND", "gloo"},
      {"POD_NAME", "n1"}};
  for (const auto& [name, value] : wanted) EXPECT_THAT(environment, Contains(Pair(name, value)));
  order.mutable_spec()->set_device("cuda");
  EXPECT_EQ(Of(order, 1).at("FLAGS_selected_gpus"), "1");
  EXPECT_FALSE(Of(order, 1).contains("PADDLE_DISTRI_BACKEND"));
}

TEST(WorkerEnvironmentTest, PaddlesEndpointsHaveTheAddressesOfTheirNodes) {
  v1::StartWorkers order = Order();  // ranks 0 and 1 on n0, 2 to 4 here
  const auto place = [&order](const char* node, const char* address, uint32_t first, uint32_t n) {
    v1::NodePlace* added = order.add_nodes();
    added->set_node(node);
    added->set_address(address);
    added->set_first_rank(first);
    added->set_count(n);
  };
  place("n0", "10.0.0.1", 0, 2);
  place("n1", "fd00::2", 2, 3);
  NodeFacts facts;
  facts.address = "fd00::2";
  const auto environment = WorkerEnvironment(order, facts, 1);
  EXPECT_EQ(environment.at("PADDLE_MASTER"), "10.0.0.1:4000");
  EXPECT_EQ(environment.at("PADDLE_CURRENT_ENDPOINT"), "[fd00::2]:4004");
  EXPECT_EQ(environment.at("PADDLE_TRAINER_ENDPOINTS"),
            "10.0.0.1:4001,10.0.0.1:4002,[fd00::2]:4003,[fd00::2]:4004,[fd00::2]:4005");
  order.clear_nodes();  // as with more than 64 nodes
  EXPECT_FALSE(WorkerEnvironment(order, facts, 1).contains("PADDLE_TRAINER_ENDPOINTS"));
  EXPECT_EQ(WorkerEnvironment(order, facts, 1).at("PADDLE_CURRENT_ENDPOINT"), "[fd00::2]:4004");
}

// As Python's string.Template.safe_substitute does, checked with it.
TEST(WorkerArgumentsTest, TheLocalRankIsSubstitutedAsTorchrunDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"${local_rank}", "7"},
      {"$local_rank", "7"},
      {"a${local_rank}b$local_rank.c", "a7b7.c"},
      {"$local_rankx", "$local_rankx"},
      {"${local_rankx}", "${local_rankx}"},
      {"${local_rank", "${local_rank"},
      {"${ local_rank}", "${ local_rank}"},
      {"$LOCAL_RANK", "$LOCAL_RANK"},
      {"${rank}", "${rank}"},
      {"$$", "$"},
      {"$$$$", "$$"},
      {"$$local_rank", "$local_rank"},
      {"$$${local_rank}", "$7"},
      {"$", "$"},
      {"a$", "a$"},
      {"$1", "$1"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(SubstituteLocalRank(text, 7), wanted) << text;
}

TEST(WorkerArgumentsTest, OnlyArgumentsInTorchrunsWayAreSubstituted) {
  v1::StartWorkers order = Order();
  *order.mutable_spec()->mutable_program(0) = "${local_rank}";
  order.mutable_spec()->add_program("x${local_rank}");
  std::string spec = MakeKeeperSpec(order, NodeFacts{}, 0);
  EXPECT_THAT(spec, HasSubstr("ARG=x${local_rank}"));
  order.mutable_spec()->mutable_launching()->set_substitute_local_rank(true);
  spec = MakeKeeperSpec(order, NodeFacts{}, 0);
  EXPECT_THAT(spec, HasSubstr("ARG=x0"));
  EXPECT_THAT(spec, HasSubstr("ARG=x2"));
  EXPECT_THAT(spec, HasSubstr("ARG=${local_rank}")) << "what is executed stays as it is";
  EXPECT_THAT(spec, Not(HasSubstr("ARG=x${local_rank}")));
}

TEST(WorkerArgumentsTest, QuietLocalRanksAreNotShown) {
  v1::StartWorkers order = Order();
  order.mutable_spec()->mutable_logging()->add_quiet_local_ranks(1);
  EXPECT_TRUE(ShownOnConsole(order.spec(), 2, 0));
  EXPECT_FALSE(ShownOnConsole(order.spec(), 3, 1));
  order.mutable_spec()->add_log_ranks(4);
  EXPECT_FALSE(ShownOnConsole(order.spec(), 2, 0));
  EXPECT_TRUE(ShownOnConsole(order.spec(), 4, 2));
}

}  // namespace
}  // namespace ddprun::agent
