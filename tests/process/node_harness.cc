#include "tests/process/node_harness.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/agent/worker_spec.h"

extern char** environ;

namespace ddprun::testing {
namespace {

int64_t BootNs() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

Node::Node(uint32_t workers, const std::string& script) {
  std::string name = (std::filesystem::temp_directory_path() / "ddprun-node-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  folder_ = name;
  console_fd_ =
      open((folder_ + "/console").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  console_ = std::make_unique<Console>(console_fd_, console_fd_);
  order_.set_job_id("test");
  order_.set_generation(1);
  order_.set_world_size(workers);
  order_.set_local_world_size(workers);
  order_.set_group_world_size(1);
  order_.set_master_address("127.0.0.1");
  spec().set_run_dir(folder_ + "/run");
  spec().set_working_dir(folder_);
  spec().set_grace_seconds(5);
  for (const std::string& word : {std::string("/bin/bash"), std::string("-c"), script}) {
    spec().add_program(word);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      (*spec().mutable_environment())[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
}

Node::~Node() {
  if (generation_) generation_->Abandon();
  generation_.reset();
  console_.reset();
  close(console_fd_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Node::Begin(int64_t lease_until_ns) {
  const char* bin = std::getenv("DDPRUN_BIN");
  const std::string keeper = std::string(bin != nullptr ? bin : "build/bin") + "/ddprun-keeper";
  generation_ = std::make_unique<agent::NodeGeneration>(agent::NodeGeneration::Options{
      "n1", keeper, "/none/ddp-worker", console_.get(), &clock_, [] {}, {}, own_});
  if (own_.several_nodes && !generation_->HoldPort().ok()) std::abort();
  generation_->Begin({order_, 0, lease_until_ns});
  Collect();
}

void Node::BeginAgain() {
  order_.set_generation(order_.generation() + 1);
  gone_.reset();
  generation_->Begin({order_, 0, 0});
  Collect();
}

void Node::Stop(v1::StopWorkers::Mode mode, double grace_seconds) {
  v1::StopWorkers stop;
  stop.set_generation(order_.generation());
  stop.set_mode(mode);
  stop.set_grace_seconds(grace_seconds);
  stop.set_reason("the test says so");
  generation_->Stop(stop);
  Collect();
}

bool Node::RunUntil(const std::function<bool()>& condition, double seconds) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  const int64_t end = BootNs() + static_cast<int64_t>(seconds * 1e9);
  while (!condition()) {
    const int64_t now = BootNs();
    if (now >= end) return false;
    std::vector<pollfd> polls;
    generation_->AddPolls(&polls);
    // Conditions may look at files too, which no descriptor tells of.
    int64_t left = std::min(end - now, 20 * kMillisecondNs);
    const int64_t deadline = generation_->NextDeadlineNs();
    if (deadline != 0) left = std::clamp<int64_t>(deadline - now, 0, left);
    poll(polls.data(), polls.size(), static_cast<int>(left / kMillisecondNs) + 1);
    generation_->Pump(BootNs());
    Collect();
  }
  return true;
}

std::optional<agent::KeeperGone> Node::RunToEnd(double seconds) {
  RunUntil([this] { return gone_.has_value(); }, seconds);
  return gone_;
}

void Node::Collect() {
  for (agent::Event& event : generation_->TakeEvents()) {
    if (auto* said = std::get_if<agent::KeeperSaid>(&event)) facts_.push_back(said->fact);
    if (auto* gone = std::get_if<agent::KeeperGone>(&event)) gone_ = *gone;
  }
}

const v1::WorkerExited* Node::Exit(uint32_t rank) const {
  for (const v1::AgentMessage& fact : facts_) {
    if (fact.has_worker_exited() && fact.worker_exited().rank() == rank) {
      return &fact.worker_exited();
    }
  }
  return nullptr;
}

const v1::WorkerStarted* Node::Started(uint32_t rank) const {
  for (const v1::AgentMessage& fact : facts_) {
    if (fact.has_worker_started() && fact.worker_started().rank() == rank) {
      return &fact.worker_started();
    }
  }
  return nullptr;
}

std::string Node::Log(uint32_t rank) const {
  return ReadAll(agent::LogPath(order_, rank));
}

std::string Node::ConsoleText() {
  console_->Flush(5);
  return ReadAll(folder_ + "/console");
}

bool Contains(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

}  // namespace ddprun::testing
