#include "launcher/keeper/standby.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>

#include "common/packet.h"
#include "common/process_tree.h"
#include "launcher/keeper/clock.h"

namespace ddprun::keeper {
namespace {

constexpr size_t kBeginBytesMax = 4096;
constexpr int64_t kEndNs = 10 * kSecond;

void Tell(int control, const char* type) {
  const std::string packet = PacketWriter(type).Finish();
  // The socket is empty; an agent that has gone is noticed when it is read.
  if (send(control, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

// The descriptor that came with a Begin; −1: the agent has gone; nullopt: nothing of importance.
std::optional<int> ReadControl(int control) {
  char buffer[kBeginBytesMax];
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  iovec piece{buffer, sizeof buffer};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  const ssize_t size = recvmsg(control, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return std::nullopt;
  if (size <= 0) return -1;
  int fd = -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
  }
  const std::optional<Packet> packet = Packet::Parse({buffer, static_cast<size_t>(size)}, nullptr);
  if (packet && packet->type() == "Begin" && fd >= 0) return fd;
  if (fd >= 0) close(fd);
  return std::nullopt;
}

void EndEverything(Preloader* preloader) {
  preloader->End();
  const int64_t deadline_ns = BootNs() + kEndNs;
  while (BootNs() < deadline_ns) {
    KillDescendants(getpid());
    pid_t reaped = 0;
    while ((reaped = waitpid(-1, nullptr, WNOHANG | __WALL)) > 0) continue;
    if (reaped < 0 && errno == ECHILD) return;
    poll(nullptr, 0, 1);
  }
}

}  // namespace

int StandBy(int control, const WorkerSpec& spec, const StartContext& context,
            Preloader* preloader) {
  bool ready = false;
  if (!preloader->Start(spec, context)) Tell(control, "PreloadFailed");
  for (;;) {
    // Once all are forked, they are of use without the process that has forked them.
    pollfd polls[] = {{control, POLLIN, 0},
                      {preloader->socket(), POLLIN, 0},
                      {ready ? -1 : preloader->exit_fd(), POLLIN, 0}};
    if (poll(polls, std::size(polls), -1) < 0) continue;
    if (polls[1].revents != 0 || polls[2].revents != 0) {
      const bool loaded = !ready && polls[1].revents != 0 && preloader->ReadReady();
      if (!loaded) preloader->End();  // by itself, now or after it was ready
      Tell(control, loaded ? "Preloaded" : "PreloadFailed");
      ready = loaded;
    }
    if (polls[0].revents == 0) continue;
    const std::optional<int> begun = ReadControl(control);
    if (!begun) continue;
    if (*begun < 0) EndEverything(preloader);
    if (*begun >= 0 && !ready) preloader->End();
    return *begun;
  }
}

}  // namespace ddprun::keeper
