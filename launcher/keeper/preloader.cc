#include "launcher/keeper/preloader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/keeper/clock.h"

namespace ddprun::keeper {
namespace {

constexpr int kPreloaderSocketFd = 3;
constexpr int kDescriptorsSent = 5;

void AddString(std::string* text, const char* key, std::string_view value) {
  text->append(key).append(value).push_back('\0');
}

// What the worker is to become, as zero-terminated KEY=VALUE strings like the spec's.
std::string Request(const WorkerSpec& spec) {
  std::string text;
  for (const char* argument : spec.arguments) AddString(&text, "ARG=", argument);
  for (const char* variable : spec.environment) {
    if (!IsKeepersVariable(variable)) AddString(&text, "ENV=", variable);
  }
  for (const char* variable : {kSocketVariable, kPageVariable}) AddString(&text, "ENV=", variable);
  if (spec.directory != nullptr) AddString(&text, "CWD=", spec.directory);
  std::string cpus;
  for (int cpu : spec.cpus) {
    if (!cpus.empty()) cpus += ',';
    cpus += std::to_string(cpu);
  }
  if (!cpus.empty()) AddString(&text, "CPUS=", cpus);
  return text;
}

// It may be larger than a packet, so it travels as a file.
Fd RequestFile(const std::string& text) {
  Fd file(memfd_create("ddprun-worker", MFD_CLOEXEC));
  size_t done = 0;
  while (file.valid() && done < text.size()) {
    const ssize_t size = write(file.get(), text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return Fd();
    done += static_cast<size_t>(size);
  }
  if (file.valid()) lseek(file.get(), 0, SEEK_SET);
  return file;
}

[[noreturn]] void RunPreloader(const std::vector<char*>& arguments,
                               const std::vector<char*>& environment, const char* directory,
                               int output, int socket, const StartContext& context, pid_t keeper) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(126);
  if (directory != nullptr && chdir(directory) != 0) _exit(126);
  const int null = open("/dev/null", O_RDONLY);
  // The socket first: output may have its number.
  const int output_copy = fcntl(output, F_DUPFD_CLOEXEC, kPreloaderSocketFd + 1);
  if (null < 0 || output_copy < 0 || dup2(socket, kPreloaderSocketFd) < 0) _exit(126);
  if (dup2(null, 0) < 0 || dup2(output_copy, 1) < 0 || dup2(output_copy, 2) < 0) _exit(126);
  closefrom(kPreloaderSocketFd + 1);
  setrlimit(RLIMIT_NOFILE, &context.open_files);
  ResetSignals(context.hangup_ignored);
  environ = const_cast<char**>(environment.data());
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

bool Preloader::Start(const WorkerSpec& spec, const StartContext& context) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  Fd own(ends[0]);
  Fd others(fcntl(ends[1], F_DUPFD_CLOEXEC, kPreloaderSocketFd + 1));
  close(ends[1]);
  Fd output(open(spec.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  if (!others.valid() || !output.valid()) return false;
  std::vector<char*> arguments, environment;
  for (const char* text : spec.arguments) arguments.push_back(const_cast<char*>(text));
  for (const char* text : spec.environment) environment.push_back(const_cast<char*>(text));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const pid_t keeper = getpid();
  pid_ = fork();
  if (pid_ < 0) return false;
  if (pid_ == 0) {
    RunPreloader(arguments, environment, spec.directory, output.get(), others.get(), context,
                 keeper);
  }
  pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  socket_ = std::move(own);
  return true;
}

bool Preloader::ReadReady() const {
  char text[16];
  return recv(socket_.get(), text, sizeof text, 0) > 0;
}

void Preloader::End() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  pid_ = -1;
  pidfd_.Reset();
  socket_.Reset();
}

bool Preloader::Ask(const WorkerSpec& spec, const ChildEnds& ends,
                    const StartedWorker& worker) const {
  const Fd request = RequestFile(Request(spec));
  if (!request.valid()) return false;
  const int descriptors[kDescriptorsSent] = {request.get(), ends.output.get(), ends.socket.get(),
                                             worker.page.fd(), ends.start_pipe.get()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  char text[] = "start";
  iovec piece{text, sizeof text - 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptors);
  memcpy(CMSG_DATA(header), descriptors, sizeof descriptors);
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL) > 0;
}

bool Preloader::AwaitPid(StartedWorker* worker, int64_t deadline_boot_ns) {
  for (;;) {
    int32_t pid = 0;
    const ssize_t size = read(worker->start_pipe.get(), &pid, sizeof pid);
    if (size == sizeof pid && pid > 1) {
      worker->pid = pid;
      return true;
    }
    if (size >= 0 || (errno != EAGAIN && errno != EINTR)) return false;
    const int64_t left_ns = deadline_boot_ns - BootNs();
    if (left_ns <= 0) return false;
    pollfd readable{worker->start_pipe.get(), POLLIN, 0};
    poll(&readable, 1, static_cast<int>(left_ns / kMillisecond) + 1);
  }
}

}  // namespace ddprun::keeper
