// Runs one generation of a node with a real keeper and real workers, and without a coordinator: the
// test sees the facts that the agent would send.
//
// Not thread-safe. Everything is waited for with a deadline; the destructor ends what still runs
// and removes the folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/node_generation.h"

namespace ddprun::testing {

class Node {
 public:
  // Each worker runs `bash -c script`.
  Node(uint32_t workers, const std::string& script);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // To be changed before Begin.
  v1::StartWorkers& order() { return order_; }
  v1::JobSpec& spec() { return *order_.mutable_spec(); }
  agent::NodeOwn& own() { return own_; }
  void Begin(int64_t lease_until_ns = 0);  // of CLOCK_BOOTTIME
  // The next one on the same node, after the end of the one before.
  void BeginAgain();
  void Stop(v1::StopWorkers::Mode mode, double grace_seconds = 0);
  agent::NodeGeneration& generation() { return *generation_; }

  // Lets the generation go on until the condition holds; false when the deadline passes.
  bool RunUntil(const std::function<bool()>& condition, double seconds = 20);
  // Until nothing is left of it.
  std::optional<agent::KeeperGone> RunToEnd(double seconds = 30);

  // What has been said so far.
  const std::vector<v1::AgentMessage>& facts() const { return facts_; }
  const v1::WorkerExited* Exit(uint32_t rank) const;
  const v1::WorkerStarted* Started(uint32_t rank) const;
  const std::optional<agent::KeeperGone>& gone() const { return gone_; }
  std::string Log(uint32_t rank) const;
  std::string ConsoleText();
  const std::string& folder() const { return folder_; }

 private:
  void Collect();

  std::string folder_;
  int console_fd_ = -1;
  std::unique_ptr<Console> console_;
  agent::LeaseClock clock_;
  v1::StartWorkers order_;
  agent::NodeOwn own_;
  std::unique_ptr<agent::NodeGeneration> generation_;
  std::vector<v1::AgentMessage> facts_;
  std::optional<agent::KeeperGone> gone_;
};

// Whether the text stands in it; for EXPECT_TRUE with the whole as its message.
bool Contains(const std::string& whole, const std::string& part);

}  // namespace ddprun::testing
