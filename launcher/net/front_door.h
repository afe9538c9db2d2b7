// FrontDoor: where strangers connect, before gRPC sees them.
//
// It listens, looks at the first bytes of each connection, answers those that speak something else
// (plain text to TLS, TLS to plain text, a web browser, random bytes), and hands the others over.
// It bounds how many connections there are, in all, for each address, and of those that have not
// proven the job's secret yet; and how long these may take. One that is handed over stays in view
// by a second descriptor, so that it can be counted and cut.
//
// One thread of its own, which sleeps while nothing happens. Threads: all methods from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/net/listener.h"

namespace ddprun::net {

struct FrontDoorLimits {
  size_t connections_max;
  size_t connections_per_peer_max;
  size_t strangers_max;
  size_t strangers_per_peer_max;
  std::chrono::milliseconds first_bytes;  // until the first bytes have come
  std::chrono::milliseconds admission;    // until the secret is proven
};
// limits.h, and less where the process may not open that many files.
FrontDoorLimits DefaultLimits();

class FrontDoor {
 public:
  struct Options {
    Listener listener;
    bool tls = false;
    FrontDoorLimits limits = DefaultLimits();
    // Takes the descriptor, which has bytes to read.
    std::function<void(int fd)> hand_over;
    std::function<void(const std::string& peer, v1::Refusal::Kind kind, std::string reason)>
        refused;
    // Why TLS failed on a connection that ended, as far as it is known; "" otherwise.
    std::function<std::string(int64_t since_ns)> tls_problem;
  };
  explicit FrontDoor(Options options);
  ~FrontDoor();
  // Nobody is let in any more; those that were handed over stay.
  void Stop();

  // The connection of this peer (PeerText) has proven the secret.
  void Admitted(const std::string& peer);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int fd = -1;
    bool handed_over = false;
    bool admitted = false;
    bool cut = false;
    std::string peer;
    std::string host;
    Clock::time_point since;
    Clock::time_point deadline;
  };
  // What is to be told or handed over once the lock is free.
  struct Outcome {
    std::vector<int> fds;
    std::vector<std::function<void()>> calls;
  };
  struct Host {
    size_t connections = 0;
    std::set<uint64_t> strangers;  // oldest first
  };

  void Run();
  int Timeout();
  void Accept(int listener, Outcome* out);
  void Welcome(int fd, Outcome* out);
  void Look(uint64_t id, Outcome* out);
  void HandOver(uint64_t id, Connection& connection, Outcome* out);
  void Ended(uint64_t id, Outcome* out);
  void CutOldest(const std::set<uint64_t>& strangers, const std::string& reason, Outcome* out);
  void CutLate(Outcome* out);
  void CutTalkative(Outcome* out);
  void Turn(uint64_t id, v1::Refusal::Kind kind, const std::string& reason,
            const std::string& answer, Outcome* out);
  void Remove(uint64_t id);
  void NoStranger(uint64_t id, const Connection& connection);
  void Tell(const std::string& peer, v1::Refusal::Kind kind, std::string reason, Outcome* out);

  Options options_;
  int epoll_ = -1;
  int wake_ = -1;
  int spare_ = -1;  // given up for a moment when the process has no descriptor left
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  uint64_t next_id_ = 1;  // 0: wake_; listeners are told apart by the high bit
  std::unordered_map<uint64_t, Connection> connections_;
  std::unordered_map<std::string, uint64_t> by_peer_;
  std::map<std::string, Host> hosts_;
  std::set<uint64_t> strangers_;
  Clock::time_point next_deadline_ = Clock::time_point::max();
  Clock::time_point next_count_ = Clock::time_point::min();  // of the bytes of strangers
  std::thread thread_;
};

}  // namespace ddprun::net
