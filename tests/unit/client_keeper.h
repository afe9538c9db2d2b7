// A keeper for tests: the other end of a worker's socket and its step page, in this process.
//
// Threads: one keeper may be used by one thread at a time. Every receive has a deadline, after
// which it returns an empty packet, so that a test fails instead of hanging.
#ifndef DDPRUN_TESTS_UNIT_CLIENT_KEEPER_H_
#define DDPRUN_TESTS_UNIT_CLIENT_KEEPER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/client/settings.h"

namespace ddprun {

constexpr int kDeadlineMs = 10000;

using Packet = std::map<std::string, std::string>;

std::string FormatPacket(const std::vector<std::pair<std::string, std::string>>& fields);
std::string Base64(const std::string& bytes);
std::string FromBase64(const std::string& text);

class FakeKeeper {
 public:
  FakeKeeper();
  ~FakeKeeper();
  FakeKeeper(const FakeKeeper&) = delete;
  FakeKeeper& operator=(const FakeKeeper&) = delete;

  // Next packet of the worker; empty when none came in time. Empty also at its end.
  Packet Receive(int timeout_ms = kDeadlineMs);
  // Next packet of this type; others before it are dropped.
  Packet ReceiveType(const std::string& type, int timeout_ms = kDeadlineMs);
  void Send(const std::vector<std::pair<std::string, std::string>>& fields);
  void SendRaw(const std::string& bytes);
  void Close();

  int fd() const { return fd_; }
  int worker_fd() const { return worker_fd_; }
  int page_fd() const { return page_fd_; }
  void ForgetWorkerEnd();  // after the worker's end was given away
  const void* page() const { return page_; }
  template <typename T>
  T PageField(size_t offset) const {
    T value;
    __builtin_memcpy(&value, static_cast<const char*>(page_) + offset, sizeof value);
    return value;
  }

  // Settings of a worker on this keeper.
  ddprun_settings Settings() const;

 private:
  int fd_ = -1;
  int worker_fd_ = -1;
  int page_fd_ = -1;
  void* page_ = nullptr;
};

// A keeper and a handle on it, closed together.
class LaunchedWorker {
 public:
  explicit LaunchedWorker(void (*change)(ddprun_settings*) = nullptr);
  ~LaunchedWorker();
  ddprun_handle* handle() { return handle_; }
  FakeKeeper& keeper() { return keeper_; }

 private:
  FakeKeeper keeper_;
  ddprun_handle* handle_ = nullptr;
};

// A folder that is removed with all it holds.
class TemporaryFolder {
 public:
  // In `parent`, or where temporary files usually are.
  explicit TemporaryFolder(const std::string& parent = "");
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Starts `program` with the keeper's descriptors and the environment of a launched worker;
// returns its pid. `more` adds variables, also over the usual ones.
int Spawn(FakeKeeper& keeper, const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::string>& more = {}, int stdout_fd = -1);
// Waits for the end of a process; returns its wait status, or -1 (and kills it) after the deadline.
int WaitFor(int pid, int timeout_ms = kDeadlineMs);

}  // namespace ddprun

#endif  // DDPRUN_TESTS_UNIT_CLIENT_KEEPER_H_
