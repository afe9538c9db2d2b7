// Runs ddprun as a user does, in a folder of its own, with coordinator and agent in one process or
// apart over TCP.
//
// Everything is waited for with a deadline; the destructor kills what is left of the launchers (by
// id) and removes the folder.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::testing {

enum class Mode { kTogether, kApart };

struct Finished {
  int exit_code = -1;  // 128 + n when a signal ended the launcher itself
  std::string output;  // of the launcher that holds the coordinator: stdout, then stderr
};

class Launch {
 public:
  // `arguments`: options and job, as after `ddprun run`; --run-dir is added. In kApart the
  // coordinator gets them, and an agent attaches.
  Launch(Mode mode, int nproc, std::vector<std::string> arguments,
         std::map<std::string, std::string> environment = {});
  // Goes on in the run folder of an earlier launch (with --resume among the arguments).
  Launch(Mode mode, int nproc, std::vector<std::string> arguments, const std::string& run_dir);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  using Json = nlohmann::json;
  // All whole lines of events.jsonl so far.
  std::vector<Json> Events() const;
  // The first event that the condition holds for, waiting for at most so long; nullopt when the
  // deadline passes.
  std::optional<Json> WaitFor(const std::function<bool(const Json&)>& condition, double seconds);
  std::optional<Json> WaitForEvent(const std::string& name, int generation, double seconds);
  // pid of a rank in a generation, once it has started.
  pid_t WorkerPid(int generation, int rank, double seconds = 20);

  // Signals the launcher: the one process, or the coordinator's.
  void Signal(int signal);
  pid_t pid() const { return coordinator_; }
  pid_t agent_pid() const { return mode_ == Mode::kApart ? agent_ : coordinator_; }
  // kApart: one more agent, with options of its own (--node is the caller's). Wait waits for it
  // too; what it says lies in `folder()`/agent-output-<its number, from 2>.
  pid_t AddAgent(int nproc, std::vector<std::string> options);
  // 128 + n for a signal; -1 while it runs (after Wait).
  int ExitCode(pid_t pid) const;
  // The keeper of the running generation (a child of the agent's process).
  pid_t KeeperPid() const;

  // Waits for the end of every launcher process.
  Finished Wait(double seconds = 60);
  Json Result() const;
  std::string Log(int generation, int rank) const;
  const std::string& run_dir() const { return run_dir_; }
  const std::string& folder() const { return folder_; }

 private:
  void Start(int nproc, std::vector<std::string> arguments,
             std::map<std::string, std::string> environment);
  pid_t Spawn(const std::vector<std::string>& command,
              const std::map<std::string, std::string>& environment, const std::string& output);
  std::vector<pid_t> Pids() const;
  Mode mode_;
  bool owns_folder_ = true;
  std::string folder_;
  std::string run_dir_;
  pid_t coordinator_ = 0;
  pid_t agent_ = 0;
  std::string address_;                        // kApart: the coordinator's
  std::map<std::string, std::string> secret_;  // where several nodes are asked for
  std::vector<pid_t> added_agents_;
  std::map<pid_t, int> ended_;  // wait status
};

std::string DdprunPath();
std::string ExamplePath(const std::string& name);
// True once no process with this id exists (a zombie of another parent counts as gone).
bool WaitGone(pid_t pid, double seconds);
// Polls the condition until it holds or the deadline passes.
bool WaitUntil(const std::function<bool()>& condition, double seconds);
std::string ReadText(const std::string& path);

}  // namespace ddprun::testing
