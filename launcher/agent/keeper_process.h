// KeeperProcess: a ddprun-keeper child and the control socket to it. A passive object: the agent's
// loop polls its descriptors and calls Receive and Reap. Not thread-safe; belongs to the loop.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::agent {

class KeeperProcess {
 public:
  // Starts `keeper_path` with the spec (proto/keeper_protocol.md). Returns as soon as it runs.
  static absl::StatusOr<std::unique_ptr<KeeperProcess>> Spawn(const std::string& keeper_path,
                                                              const std::string& spec);
  // Ends it: at most 20 s, should it stand still.
  ~KeeperProcess();
  KeeperProcess(const KeeperProcess&) = delete;
  KeeperProcess& operator=(const KeeperProcess&) = delete;

  // Sends a packet with a file that holds `text` (Begin, with the spec of a keeper in reserve).
  absl::Status SendWithFile(const std::string& packet, const std::string& text);

  int control_fd() const { return control_fd_; }
  int pid_fd() const { return pid_fd_; }
  pid_t pid() const { return pid_; }

  // Queues a packet and sends what the socket takes.
  void Send(std::string packet);
  bool WantsToSend() const { return !outgoing_.empty(); }
  void Flush();
  // The next packet that is there; false when there is none. *end: the keeper closed its side.
  bool Receive(std::string* packet, bool* end);
  // True when the process has ended and was reaped.
  bool Reap();
  // Lets it go on where a signal has stopped it.
  void Wake();
  void Kill();

 private:
  KeeperProcess(pid_t pid, int pid_fd, int control_fd);
  bool AwaitEnd(int milliseconds);
  pid_t pid_;
  int pid_fd_;
  int control_fd_;
  bool reaped_ = false;
  bool killed_ = false;
  std::vector<std::string> outgoing_;
};

}  // namespace ddprun::agent
