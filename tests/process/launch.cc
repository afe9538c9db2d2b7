#include "tests/process/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/process_tree.h"

extern char** environ;

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kPollMilliseconds = 3;

std::string BinFolder() {
  const char* bin = std::getenv("DDPRUN_BIN");
  return bin != nullptr ? bin : "build/bin";
}

}  // namespace

std::string DdprunPath() {
  return BinFolder() + "/ddprun";
}
std::string ExamplePath(const std::string& name) {
  return BinFolder() + "/examples/" + name;
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool WaitUntil(const std::function<bool()>& condition, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() >= end) return false;
    poll(nullptr, 0, kPollMilliseconds);
  }
  return true;
}

bool WaitGone(pid_t pid, double seconds) {
  return WaitUntil(
      [pid] {
        if (kill(pid, 0) != 0) return true;
        const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
        const size_t end = stat.rfind(')');
        return end != std::string::npos && stat.compare(end, 3, ") Z") == 0;
      },
      seconds);
}

Launch::Launch(Mode mode, int nproc, std::vector<std::string> arguments,
               std::map<std::string, std::string> environment)
    : mode_(mode) {
  std::string name = (fs::temp_directory_path() / "ddprun-launch-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  folder_ = name;
  run_dir_ = folder_ + "/run";
  Start(nproc, std::move(arguments), std::move(environment));
}

Launch::Launch(Mode mode, int nproc, std::vector<std::string> arguments, const std::string& run_dir)
    : mode_(mode),
      owns_folder_(false),
      folder_(fs::path(run_dir).parent_path()),
      run_dir_(run_dir) {
  Start(nproc, std::move(arguments), {});
}

void Launch::Start(int nproc, std::vector<std::string> arguments,
                   std::map<std::string, std::string> environment) {
  std::vector<std::string> command = {DdprunPath()};
  if (std::find(arguments.begin(), arguments.end(), "--nnodes") != arguments.end()) {
    secret_["DDPRUN_SECRET"] = "of the tests alone";
  }
  environment.insert(secret_.begin(), secret_.end());
  const std::string output = folder_ + "/output";
  fs::remove(output);
  if (mode_ == Mode::kApart) {
    command.insert(command.end(), {"coordinator", "--listen", "127.0.0.1:0"});
  } else {
    command.push_back("run");
  }
  command.insert(command.end(), {"--nproc", std::to_string(nproc), "--run-dir", run_dir_});
  command.insert(command.end(), arguments.begin(), arguments.end());
  coordinator_ = Spawn(command, environment, output);
  if (mode_ == Mode::kTogether) return;
  const std::string marker = "listening on ";
  WaitUntil(
      [&] {
        const std::string text = ReadText(output);
        const size_t at = text.find(marker);
        const size_t end = text.find('\n', at == std::string::npos ? 0 : at);
        if (at == std::string::npos || end == std::string::npos) return false;
        address_ = text.substr(at + marker.size(), end - at - marker.size());
        return true;
      },
      10);
  agent_ =
      Spawn({DdprunPath(), "agent", "--coordinator", address_, "--nproc", std::to_string(nproc)},
            environment, folder_ + "/agent-output");
}

pid_t Launch::AddAgent(int nproc, std::vector<std::string> options) {
  std::vector<std::string> command = {DdprunPath(), "agent",   "--coordinator",
                                      address_,     "--nproc", std::to_string(nproc)};
  command.insert(command.end(), options.begin(), options.end());
  added_agents_.push_back(Spawn(
      command, secret_, folder_ + "/agent-output-" + std::to_string(added_agents_.size() + 2)));
  return added_agents_.back();
}

std::vector<pid_t> Launch::Pids() const {
  std::vector<pid_t> pids = {coordinator_, agent_};
  pids.insert(pids.end(), added_agents_.begin(), added_agents_.end());
  return pids;
}

int Launch::ExitCode(pid_t pid) const {
  const auto found = ended_.find(pid);
  if (found == ended_.end()) return -1;
  return WIFSIGNALED(found->second) ? 128 + WTERMSIG(found->second) : WEXITSTATUS(found->second);
}

pid_t Launch::Spawn(const std::vector<std::string>& command,
                    const std::map<std::string, std::string>& environment,
                    const std::string& output) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const auto& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  for (const auto& part : variables) envp.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addchdir_np(&actions, folder_.c_str());
  pid_t pid = 0;
  // Nothing could be tested, and signals to pid -1 would go to everybody.
  if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) {
    std::fprintf(stderr, "cannot start %s (DDPRUN_BIN is its folder, absolute)\n", argv[0]);
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

Launch::~Launch() {
  for (pid_t pid : Pids()) {
    if (pid <= 0 || ended_.contains(pid)) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  std::error_code ignored;
  if (owns_folder_) fs::remove_all(folder_, ignored);
}

std::vector<Launch::Json> Launch::Events() const {
  std::vector<Json> events;
  std::istringstream lines(ReadText(run_dir_ + "/events.jsonl"));
  std::string line;
  while (std::getline(lines, line)) {
    Json event = Json::parse(line, nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
  return events;
}

std::optional<Launch::Json> Launch::WaitFor(const std::function<bool(const Json&)>& condition,
                                            double seconds) {
  std::optional<Json> found;
  WaitUntil(
      [&] {
        for (const Json& event : Events()) {
          if (!condition(event)) continue;
          found = event;
          return true;
        }
        return false;
      },
      seconds);
  return found;
}

std::optional<Launch::Json> Launch::WaitForEvent(const std::string& name, int generation,
                                                 double seconds) {
  return WaitFor(
      [&](const Json& event) {
        return event["event"] == name && event["generation"] == generation;
      },
      seconds);
}

pid_t Launch::WorkerPid(int generation, int rank, double seconds) {
  auto event = WaitFor(
      [&](const Json& e) {
        return e["event"] == "worker_started" && e["generation"] == generation && e["rank"] == rank;
      },
      seconds);
  return event ? (*event)["pid"].get<pid_t>() : -1;
}

void Launch::Signal(int signal) {
  kill(coordinator_, signal);
}

pid_t Launch::KeeperPid() const {
  for (pid_t pid : ListDescendants(agent_pid())) {
    if (ReadText("/proc/" + std::to_string(pid) + "/comm") == "ddprun-keeper\n") return pid;
  }
  return -1;
}

Finished Launch::Wait(double seconds) {
  Finished finished;
  for (pid_t pid : Pids()) {
    if (pid <= 0 || ended_.contains(pid)) continue;
    int status = 0;
    if (WaitUntil([&] { return waitpid(pid, &status, WNOHANG) == pid; }, seconds))
      ended_[pid] = status;
  }
  finished.exit_code = ExitCode(coordinator_);
  finished.output = ReadText(folder_ + "/output");
  return finished;
}

Launch::Json Launch::Result() const {
  return Json::parse(ReadText(run_dir_ + "/result.json"), nullptr, false);
}

std::string Launch::Log(int generation, int rank) const {
  return ReadText(run_dir_ + "/logs/g" + std::to_string(generation) + "/rank" +
                  std::to_string(rank) + ".log");
}

}  // namespace ddprun::testing
