// A node speaks for its own ranks only, and on its newest stream only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;

// What a node may claim about a rank, each kind of message.
std::vector<v1::AgentMessage> Claims(uint32_t rank) {
  std::vector<v1::AgentMessage> all(11);
  auto fill = [rank](auto* fact) {
    fact->set_generation(1);
    fact->set_rank(rank);
  };
  fill(all[0].mutable_worker_started());
  fill(all[1].mutable_worker_ready());
  fill(all[2].mutable_worker_progressed());
  fill(all[3].mutable_worker_failed());
  fill(all[4].mutable_worker_exited());
  fill(all[5].mutable_publish());
  fill(all[6].mutable_await());
  fill(all[7].mutable_edge_reached());
  fill(all[8].mutable_checkpoint());
  fill(all[9].mutable_worker_result());
  fill(all[10].mutable_worker_stalled());
  return all;
}

TEST(Gate, LetsNoNodeSpeakForAnothersRank) {
  CoreHarness job;
  job.Start();
  for (const uint32_t rank : {2U, 4U, 4'294'967'295U}) {  // b's, and two that do not exist
    for (const v1::AgentMessage& claim : Claims(rank)) job.Say("a", claim);
  }
  v1::AgentMessage examined;
  examined.mutable_workers_examined()->set_generation(1);
  examined.mutable_workers_examined()->add_workers()->set_rank(3);
  job.Say("a", examined);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(job.state.generation.started + job.state.generation.exited, 0u);
  EXPECT_TRUE(job.state.generation.awaits.empty());
  EXPECT_EQ(job.Count("message_rejected"), 1);
  EXPECT_EQ(job.Event("message_rejected")["node"], "a");
  job.Pass(1.1);
  EXPECT_EQ(job.Event("message_rejected")["count"], 33);  // of 34; at most one line a second
}

TEST(Gate, LetsASpareSayNothingAboutTheGeneration) {
  CoreHarness job;
  job.Start();
  job.Join("c");
  v1::AgentMessage stopped;
  stopped.mutable_generation_stopped()->set_generation(1);
  stopped.mutable_generation_stopped()->set_keeper_died(true);
  job.Say("c", stopped);
  v1::AgentMessage unhealthy;
  unhealthy.mutable_node_unhealthy()->set_generation(1);
  job.Say("c", unhealthy);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_THAT(std::string(job.Event("message_rejected")["reason"]), HasSubstr("takes no part"));
}

// What comes late from a stream that was replaced says nothing any more, not even that it broke.
TEST(Gate, DropsWhatAReplacedStreamStillBrings) {
  CoreHarness job;
  job.Start();
  job.state.nodes.at("b").stream = 7;
  job.Detach("b");  // stream 0
  EXPECT_TRUE(job.state.nodes.at("b").attached);
  job.Exit(2, 1);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// Times that no clock shows do not overflow.
TEST(Gate, BearsAnyTime) {
  CoreHarness job;
  job.Start();
  v1::AgentMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_clock_offset_ns(std::numeric_limits<int64_t>::min());
  job.Say("b", heartbeat);
  job.Exit(2, 1, 0, false, std::numeric_limits<int64_t>::max());
  job.Exit(3, 1, 0, false, std::numeric_limits<int64_t>::min());
  job.Exit(0, 1, 0, true);
  job.Exit(1, 1, 0, true);
  job.StopAll();
  EXPECT_EQ(job.Count("restart_scheduled"), 1);
}

}  // namespace
}  // namespace ddprun::coordinator
