// ddprun-swarm COORDINATOR AGENTS SLOTS: attaches so many simulated agents to a real coordinator
// and goes through one generation. The secret is that of DDPRUN_SECRET. For scripts/bench_scale.py,
// with which it speaks by lines: after each of its own it waits for one on standard input.
//   waiting   all agents but the last are in; the next line lets the last one attach
//   told      every rank has rank 0's unique ID, with what went over the wire since `waiting`
//   ready     every rank has said that it is ready
//   over      the job has ended
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/scale/swarm.h"

namespace ddprun::scale {
namespace {

constexpr std::chrono::seconds kPatience{300};
constexpr uint32_t kAttachingMax = 64;  // at a time; a coordinator bounds strangers

class Swarm {
 public:
  Swarm(const std::string& coordinator, const net::Security& security, uint32_t agents,
        uint32_t slots)
      : ranks_(agents * slots) {
    for (uint32_t i = 0; i < agents; ++i) {
      agents_.push_back(std::make_unique<SwarmAgent>(coordinator, security, i, slots, &totals_));
    }
    pulse_ = std::jthread([this](const std::stop_token& stop) { Beat(stop); });
  }

  int Run() {
    for (size_t i = 0; i + 1 < agents_.size(); ++i) {
      agents_[i]->Attach();
      const auto enough = [&] { return totals_.welcomed + kAttachingMax > i; };
      if (!Await("agents to be let in", enough)) return 1;
    }
    if (!Await("all but one to be let in", [&] { return totals_.welcomed + 1 == agents_.size(); }))
      return 1;
    Say("waiting");
    Reset();
    agents_.back()->Attach();
    if (!Await("the unique ID", [&] { return totals_.ranks_told == ranks_; })) return 1;
    Say("told");
    for (auto& agent : agents_) agent->GetReady();
    Say("ready");
    for (auto& agent : agents_) agent->Finish();
    if (!Await("the job's end", [&] { return totals_.ended == agents_.size(); })) return 1;
    Say("over");
    return 0;
  }

 private:
  void Beat(const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kPulse{10};
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(kPulse);
      const int64_t now_ns = NowNs(CLOCK_MONOTONIC);
      for (auto& agent : agents_) agent->Heartbeat(now_ns);
    }
  }

  bool Await(const char* what, const std::function<bool()>& condition) {
    std::unique_lock lock(totals_.mutex);
    totals_.changed.wait_for(lock, kPatience, [&] { return totals_.failed > 0 || condition(); });
    if (condition() && totals_.failed == 0) return true;
    std::fprintf(stderr,
                 "ddprun-swarm: waiting for %s: %u of %zu agents are in, %u ranks told: %s\n", what,
                 totals_.welcomed, agents_.size(), totals_.ranks_told, totals_.problem.c_str());
    return false;
  }

  void Reset() {
    std::lock_guard lock(totals_.mutex);
    totals_.messages_up = totals_.messages_down = 0;
    totals_.batches_up = totals_.batches_down = 0;
    totals_.bytes_up = totals_.bytes_down = 0;
  }

  void Say(const char* what) {
    {
      std::lock_guard lock(totals_.mutex);
      std::printf(
          R"({"is":"%s","messages_up":%lu,"messages_down":%lu,"batches_up":%lu,"batches_down":%lu,)"
          R"("bytes_up":%lu,"bytes_down":%lu})"
          "\n",
          what, totals_.messages_up, totals_.messages_down, totals_.batches_up,
          totals_.batches_down, totals_.bytes_up, totals_.bytes_down);
    }
    std::fflush(stdout);
    std::string line;
    std::getline(std::cin, line);
  }

  uint32_t ranks_;
  Totals totals_;
  std::vector<std::unique_ptr<SwarmAgent>> agents_;
  std::jthread pulse_;
};

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: ddprun-swarm COORDINATOR AGENTS SLOTS\n");
    return 2;
  }
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  net::Security security;
  const char* secret = std::getenv("DDPRUN_SECRET");
  if (secret != nullptr) security.secret = secret;
  const auto number = [](const char* text) {
    return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  };
  const uint32_t agents = number(argv[2]);
  const uint32_t slots = number(argv[3]);
  if (agents == 0 || slots == 0) return 2;
  return Swarm(argv[1], security, agents, slots).Run();
}

}  // namespace
}  // namespace ddprun::scale

int main(int argc, char** argv) {
  return ddprun::scale::Main(argc, argv);
}
