#include "launcher/keeper/agent_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/packet.h"
#include "launcher/keeper/clock.h"

namespace ddprun::keeper {
namespace {

std::string ConsolePacket(int64_t rank, uint64_t dropped, std::string_view bytes) {
  return PacketWriter("Console")
      .Integer("RANK", rank)
      .Unsigned("DROPPED", dropped)
      .FinishWithBody(bytes);
}

}  // namespace

AgentLink::AgentLink(Fd socket, Poller* poller) : socket_(std::move(socket)), poller_(poller) {
  poller_->Watch(socket_.get(), Source::kAgent);
  // A packet of the largest size must fit at once; more is a wish.
  const int bytes = 4 * static_cast<int>(kControlPacketBytesMax);
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void AgentLink::Send(std::string packet) {
  if (!connected()) return;
  if (queue_.Push(socket_.get(), std::move(packet)) != PacketQueue::Outcome::kOk) Disconnect();
}

void AgentLink::SendConsoleAlways(int64_t rank, std::string_view text, uint64_t* dropped) {
  Send(ConsolePacket(rank, std::exchange(*dropped, 0), text));
}

void AgentLink::Flush() {
  if (connected() && queue_.Flush(socket_.get()) == PacketQueue::Outcome::kClosed) Disconnect();
}

AgentLink::Received AgentLink::Receive(std::string_view* packet) {
  static char buffer[kControlPacketBytesMax];
  while (connected()) {
    iovec piece{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const ssize_t size = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (size > 0) {
      if ((message.msg_flags & MSG_TRUNC) != 0) continue;  // longer than the protocol allows: void
      *packet = std::string_view(buffer, static_cast<size_t>(size));
      return Received::kPacket;
    }
    if (size < 0 && errno == EAGAIN) return Received::kEmpty;
    // The agent closed while our packets lay unread at its side; what it sent before still comes.
    if (size < 0 && (errno == ECONNRESET || errno == EINTR)) continue;
    Disconnect();
  }
  return Received::kClosed;
}

void AgentLink::FlushBefore(int64_t deadline_boot_ns) {
  Flush();
  while (connected() && wants_write()) {
    const int64_t left_ms = (deadline_boot_ns - BootNs()) / kMillisecond;
    if (left_ms <= 0) return;
    pollfd entry{socket_.get(), POLLOUT, 0};
    poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30)));
    Flush();
  }
}

void AgentLink::Disconnect() {
  poller_->Close(&socket_);
  queue_.Clear();
}

}  // namespace ddprun::keeper
