// KeeperProcess: a test's side of ddprun-keeper: makes the spec and the control socket, starts
// build/bin/ddprun-keeper and reads its packets. Every wait is for an event and has a deadline; on
// its expiry the test fails and says what came instead.
//
// Threads: one. The destructor kills the keeper and all that carries this test's mark in its
// environment.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/packet.h"

namespace ddprun::keeper_test {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
inline constexpr Milliseconds kPatience{10'000};

struct WorkerOptions {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // added to PATH and the mark
  std::string directory;
  std::string log;  // empty: <folder>/rank<R>.log
  bool console = false;
  std::string cpus;
};

struct KeeperOptions {
  std::vector<WorkerOptions> workers;  // rank = index
  int grace_ms = 5000;
  int lease_ms = 0;  // from the start on; 0: none, negative: it has run out before
  int hang_ms = 0;
  bool foreground = true;
  std::vector<std::string> further;   // more keys of the job, as LOG_BYTES_MAX=1000
  std::function<void()> before_exec;  // in the child that becomes the keeper
};

// One packet of the keeper, with the bytes it points into.
struct Message {
  std::shared_ptr<const std::string> bytes;
  Packet packet;
  Clock::time_point received;

  int64_t Integer(std::string_view key) const { return packet.Integer(key).value_or(-1); }
  std::string Text(std::string_view key) const { return packet.Text(key).value_or(""); }
  std::string Body() const { return std::string(packet.body().value_or("")); }
};

class KeeperProcess {
 public:
  explicit KeeperProcess(KeeperOptions options);
  ~KeeperProcess();

  // The first packet of the type (and rank, unless −1), already received or still to come. Fails
  // the test after the patience.
  Message Await(std::string_view type, int64_t rank = -1, Milliseconds patience = kPatience);
  // The first worker packet of the type from the rank, parsed from the body of a Packet.
  Message AwaitFromWorker(std::string_view type, int64_t rank);
  // Waits until the output of the rank so far (console must be on) contains the text.
  void AwaitConsole(int64_t rank, std::string_view text);
  // Everything up to Gone, and the end of the keeper itself.
  void AwaitGone(Milliseconds patience = kPatience);
  const std::vector<Message>& messages() const { return messages_; }
  size_t Count(std::string_view type) const;
  // Position of the first packet of the type and rank in messages().
  size_t Position(std::string_view type, int64_t rank) const;
  std::string Console(int64_t rank) const;

  void Send(const std::string& packet);
  void SendToWorker(int64_t rank, const std::string& packet);
  void Stop(std::string_view mode, int grace_ms = -1);
  void CloseControl();

  pid_t pid() const { return pid_; }
  // The exit code of the keeper, or 128 + signal.
  int AwaitExit(Milliseconds patience = kPatience);
  // Fails unless every process of this test is gone in time.
  void ExpectNothingLeft(Milliseconds patience);
  std::vector<pid_t> ListMarked() const;

  const std::string& folder() const { return folder_; }
  std::string LogPath(size_t rank) const;
  std::string Log(size_t rank) const;

 private:
  std::string MakeSpec() const;
  void Spawn();
  bool Receive(Clock::time_point deadline);

  KeeperOptions options_;
  std::string folder_;
  std::string mark_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  int exit_code_ = -1;
  int control_ = -1;
  std::vector<Message> messages_;
};

std::string ReadFile(const std::string& path);
std::string FakeWorker();  // path of the program in keeper_fake_worker.cc
// True: the process ended (or was gone already) before the deadline.
bool AwaitDeath(pid_t pid, Milliseconds patience);
// The value of a line of /proc/<pid>/status, such as "VmHWM"; 0 when missing.
int64_t StatusNumber(pid_t pid, const std::string& key);
WorkerOptions Shell(const std::string& script, bool console = false);
WorkerOptions Fake(std::vector<std::string> arguments, bool console = false);

}  // namespace ddprun::keeper_test
