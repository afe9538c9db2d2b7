#include "launcher/agent/keeper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/packet.h"

extern char** environ;

namespace ddprun::agent {
namespace {

constexpr int kSpecFd = 3;  // numbers that the child sees
constexpr int kControlFd = 4;
constexpr int kSafeFd =
    16;  // descriptors are moved above these first, so that dup2 cannot hit its own source
constexpr int kEndMilliseconds = 15000;  // it gives up processes that cannot be killed after 10 s
constexpr int kDeathMilliseconds = 5000;

// A memfd that holds the spec, positioned at its start.
absl::StatusOr<int> SpecFd(const std::string& spec) {
  int fd = memfd_create("ddprun-spec", MFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "memfd_create for the keeper's spec");
  size_t done = 0;
  while (done < spec.size()) {
    ssize_t n = write(fd, spec.data() + done, spec.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      close(fd);
      return absl::ErrnoToStatus(error, "write of the keeper's spec");
    }
    done += static_cast<size_t>(n);
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

absl::StatusOr<pid_t> SpawnProcess(const std::string& path, int spec_fd, int control_fd) {
  const int spec = fcntl(spec_fd, F_DUPFD_CLOEXEC, kSafeFd);
  const int control = fcntl(control_fd, F_DUPFD_CLOEXEC, kSafeFd);
  if (spec < 0 || control < 0) return absl::ErrnoToStatus(errno, "dup for the keeper");
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, spec, kSpecFd);
  posix_spawn_file_actions_adddup2(&actions, control, kControlFd);
  // The launcher blocks signals for its signal thread; the keeper starts with none blocked.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::string spec_text = absl::StrCat(kSpecFd);
  std::string control_text = absl::StrCat(kControlFd);
  std::string program = path;
  char* argv[] = {program.data(), spec_text.data(), control_text.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, path.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(spec);
  close(control);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", path));
  return pid;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperProcess>> KeeperProcess::Spawn(const std::string& keeper_path,
                                                                    const std::string& spec) {
  absl::StatusOr<int> spec_fd = SpecFd(spec);
  if (!spec_fd.ok()) return spec_fd.status();
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
    const int error = errno;
    close(*spec_fd);
    return absl::ErrnoToStatus(error, "socketpair for the keeper");
  }
  absl::StatusOr<pid_t> pid = SpawnProcess(keeper_path, *spec_fd, sockets[1]);
  close(*spec_fd);
  close(sockets[1]);
  if (!pid.ok()) {
    close(sockets[0]);
    return pid.status();
  }
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, *pid, 0));
  if (pid_fd < 0) {
    const int error = errno;
    kill(*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    close(sockets[0]);
    return absl::ErrnoToStatus(error, "pidfd_open for the keeper");
  }
  return std::unique_ptr<KeeperProcess>(new KeeperProcess(*pid, pid_fd, sockets[0]));
}

KeeperProcess::KeeperProcess(pid_t pid, int pid_fd, int control_fd)
    : pid_(pid), pid_fd_(pid_fd), control_fd_(control_fd) {}

KeeperProcess::~KeeperProcess() {
  // The end of the control socket makes a living keeper kill its workers and end.
  close(control_fd_);
  if (!Reap() && !killed_) {
    Wake();
    if (!AwaitEnd(kEndMilliseconds)) {
      Kill();
      AwaitEnd(kDeathMilliseconds);
    }
  }
  close(pid_fd_);
}

bool KeeperProcess::AwaitEnd(int milliseconds) {
  pollfd end = {pid_fd_, POLLIN, 0};
  while (poll(&end, 1, milliseconds) < 0 && errno == EINTR) continue;
  return Reap();
}

absl::Status KeeperProcess::SendWithFile(const std::string& packet, const std::string& text) {
  absl::StatusOr<int> file = SpecFd(text);
  if (!file.ok()) return file.status();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec piece{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &*file, sizeof(int));
  ssize_t size = 0;
  do {
    size = sendmsg(control_fd_, &message, MSG_NOSIGNAL);
  } while (size < 0 && errno == EINTR);
  const int error = errno;
  close(*file);
  return size >= 0 ? absl::OkStatus()
                   : absl::ErrnoToStatus(error, "sendmsg of the spec to the keeper in reserve");
}

void KeeperProcess::Send(std::string packet) {
  outgoing_.push_back(std::move(packet));
  Flush();
}

void KeeperProcess::Flush() {
  size_t sent = 0;
  for (; sent < outgoing_.size(); ++sent) {
    const std::string& packet = outgoing_[sent];
    ssize_t n = 0;
    do {
      n = send(control_fd_, packet.data(), packet.size(), MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) break;
    // Any other error: the keeper is gone, which its pidfd tells.
  }
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent));
}

bool KeeperProcess::Receive(std::string* packet, bool* end) {
  packet->resize(kControlPacketBytesMax);
  ssize_t n = 0;
  int resets = 0;
  do {
    n = recv(control_fd_, packet->data(), packet->size(), 0);
    // A peer that closed with our bytes unread is told once as ECONNRESET, in front of packets that
    // are still there.
  } while (n < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
  *end = n == 0 || (n < 0 && errno != EAGAIN);
  if (n <= 0) return false;
  packet->resize(static_cast<size_t>(n));
  return true;
}

bool KeeperProcess::Reap() {
  if (reaped_) return true;
  const pid_t reaped = waitpid(pid_, nullptr, WNOHANG);
  reaped_ = reaped == pid_ || (reaped < 0 && errno == ECHILD);
  return reaped_;
}

void KeeperProcess::Wake() {
  syscall(SYS_pidfd_send_signal, pid_fd_, SIGCONT, nullptr, 0);
}

void KeeperProcess::Kill() {
  killed_ = true;
  syscall(SYS_pidfd_send_signal, pid_fd_, SIGKILL, nullptr, 0);
}

}  // namespace ddprun::agent
