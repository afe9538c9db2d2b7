#include "launcher/agent/stacks.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/process_tree.h"
#include "launcher/agent/tool.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kProcFileBytesMax = 8192;
constexpr size_t kThreadsTold = 64;
constexpr size_t kDescendantsTold = 16;
constexpr size_t kToolsAtOnce = 8;
constexpr std::chrono::milliseconds kProcReserve{500};  // of the time, for /proc after the tools
constexpr int kWaitDepthMax = 8;                        // wrappers around wrappers

// Files of /proc that need no lock of the process: cmdline, environ and maps would block the reader
// behind one that is stuck in the kernel with its memory map locked.
std::string ReadProc(pid_t pid, const std::string& file) {
  const std::string path = absl::StrCat("/proc/", pid, "/", file);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text(kProcFileBytesMax, '\0');
  const ssize_t size = read(fd, text.data(), text.size());
  close(fd);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

// The letter of /proc/<pid>/stat; '\0' when the process is gone.
char StateLetter(pid_t pid, const std::string& folder = "") {
  const std::string stat = ReadProc(pid, folder + "stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '\0';
}

std::string StateName(char letter) {
  switch (letter) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "stuck in the kernel (disk, network file system or driver)";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'Z':
      return "ended, not yet waited for";
    case '\0':
      return "gone";
    default:
      return std::string(1, letter);
  }
}

std::string DescribeState(pid_t pid, const std::string& folder = "") {
  std::string text = StateName(StateLetter(pid, folder));
  const std::string channel = ReadProc(pid, folder + "wchan");
  if (!channel.empty() && channel != "0") absl::StrAppend(&text, " in ", channel);
  return text;
}

std::string ProgramOf(pid_t pid) {
  std::string path(4096, '\0');
  const ssize_t size = readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), path.data(), 4096);
  path.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return path.substr(path.rfind('/') + 1);
}

std::vector<std::string> ThreadsOf(pid_t pid) {
  std::vector<std::string> threads;
  DIR* dir = opendir(absl::StrCat("/proc/", pid, "/task").c_str());
  if (dir == nullptr) return threads;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.' && threads.size() < kThreadsTold) threads.push_back(entry->d_name);
  }
  closedir(dir);
  return threads;
}

std::string StackFromProc(pid_t pid) {
  std::string text;
  for (const std::string& thread : ThreadsOf(pid)) {
    const std::string folder = absl::StrCat("task/", thread, "/");
    absl::StrAppend(&text, "thread ", thread, " (", ReadProc(pid, folder + "comm"),
                    "): ", DescribeState(pid, folder));
    const std::string call = ReadProc(pid, folder + "syscall");
    if (!call.empty() && call != "running") {
      absl::StrAppend(&text, ", system call ", call.substr(0, call.find(' ')));
    }
    text += '\n';
    const std::string stack = ReadProc(pid, folder + "stack");  // root alone may read it
    const std::vector<std::string> lines = absl::StrSplit(stack, '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      absl::StrAppend(&text, "  ", line, "\n");
    }
    if (text.size() > kStackBytesMax) break;
  }
  return text;
}

// The process that a wrapper (sh -c, a script) waits for; the process itself when it waits for
// none.
pid_t Innermost(pid_t pid) {
  for (int depth = 0; depth < kWaitDepthMax; ++depth) {
    if (ReadProc(pid, "wchan") != "do_wait") return pid;
    const std::vector<pid_t> descendants = ListDescendants(pid);
    if (descendants.empty()) return pid;
    pid = descendants.front();
  }
  return pid;
}

// Continues a process that a tool has left stopped.
class StopGuard {
 public:
  explicit StopGuard(pid_t pid)
      : pid_(pid), pid_fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  ~StopGuard() {
    constexpr int kLooksMax = 50;  // of 10 ms: a killed debugger's hold ends when it is gone
    constexpr timespec kPause = {0, 10'000'000};
    for (int look = 0; look < kLooksMax && StateLetter(pid_) == 't'; ++look) {
      nanosleep(&kPause, nullptr);
    }
    if (pid_fd_ < 0) return;
    if (StateLetter(pid_) == 'T') syscall(SYS_pidfd_send_signal, pid_fd_, SIGCONT, nullptr, 0);
    close(pid_fd_);
  }
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

 private:
  pid_t pid_;
  int pid_fd_;
};

bool AskTool(const std::string& name, const std::vector<std::string>& arguments, pid_t pid,
             Clock::time_point limit, int stop_fd, Stack* stack) {
  const StopGuard guard(pid);
  ToolRun run = RunTool(arguments, limit, kStackBytesMax, stop_fd);
  if (run.end == ToolRun::End::kMissing) return false;
  // gdb succeeds also where it may not attach.
  const bool useful = absl::StrContains(run.output, name == "gdb" ? "\n#0 " : "hread");
  if (run.end == ToolRun::End::kExited && run.exit_code == 0 && useful) {
    stack->source = name;
    stack->text = std::move(run.output);
    return true;
  }
  const std::string why =
      run.end == ToolRun::End::kTimedOut
          ? "did not end in time"
          : run.output.substr(
                run.output.find_last_of('\n', run.output.size() > 1 ? run.output.size() - 2 : 0) +
                1);
  absl::StrAppend(&stack->text, name, ": ", absl::StripTrailingAsciiWhitespace(why), "\n");
  return false;
}

// gdb reads the functions of every library that is mapped: 13 s for PyTorch with CUDA, more than
// there is. There it reads those of these alone, which takes 4 s and names all but CUDA's own.
constexpr char kLibrariesOfAStack[] =
    "lib\\(c\\.so\\|pthread\\|stdc\\|python\\|c10\\|torch_cpu\\|torch_python\\|gloo\\|nccl\\)";

std::vector<std::string> GdbArguments(pid_t pid) {
  std::vector<std::string> arguments = {
      "gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"};
  const auto add = [&](const char* option, std::string text) {
    arguments.emplace_back(option);
    arguments.push_back(std::move(text));
  };
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  const std::string mapped(std::istreambuf_iterator<char>(maps), {});
  const bool large = absl::StrContains(mapped, "/libtorch_cuda.so");
  if (large) add("-iex", "set auto-solib-add off");
  add("-p", absl::StrCat(pid));
  if (large) add("-ex", absl::StrCat("sharedlibrary ", kLibrariesOfAStack));
  add("-ex", "thread apply all -ascending bt 64");
  return arguments;
}

Stack Examine(pid_t pid, Clock::time_point limit, int stop_fd) {
  Stack stack;
  if (pid <= 0) return stack;
  stack.state = DescribeState(pid);
  std::string processes;
  std::vector<pid_t> descendants = ListDescendants(pid);
  descendants.resize(std::min(descendants.size(), kDescendantsTold));
  for (pid_t child : descendants) {
    absl::StrAppend(&processes, "process ", child, " (", ProgramOf(child),
                    "): ", DescribeState(child), "\n");
  }
  const pid_t target = Innermost(pid);
  const char letter = StateLetter(target);
  // A debugger could only wait for one that cannot stop, and would disturb one that somebody holds.
  const bool examinable = letter == 'R' || letter == 'S';
  const std::string id = absl::StrCat(target);
  bool done = false;
  if (examinable && absl::StartsWith(ProgramOf(target), "python")) {
    done = AskTool("py-spy", {"py-spy", "dump", "--pid", id}, target, limit, stop_fd, &stack);
  }
  if (examinable && !done) {
    done = AskTool("gdb", GdbArguments(target), target, limit, stop_fd, &stack);
  }
  if (!done) {
    stack.source = "/proc";
    stack.text += StackFromProc(target);
  }
  if (target != pid) stack.text = absl::StrCat("of process ", target, "\n", stack.text);
  stack.text.resize(
      std::min(stack.text.size(), kStackBytesMax - std::min(processes.size(), kStackBytesMax)));
  stack.text += processes;
  return stack;
}

}  // namespace

std::vector<Stack> CollectStacks(const std::vector<pid_t>& pids,
                                 std::chrono::steady_clock::duration time, int stop_fd) {
  const Clock::time_point limit = Clock::now() + time - kProcReserve;
  std::vector<Stack> stacks(pids.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(pids.size(), kToolsAtOnce); ++i) {
    threads.emplace_back([&] {
      for (size_t k = next++; k < pids.size(); k = next++) {
        stacks[k] = Examine(pids[k], limit, stop_fd);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return stacks;
}

}  // namespace ddprun::agent
