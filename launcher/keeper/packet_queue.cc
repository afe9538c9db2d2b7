#include "launcher/keeper/packet_queue.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace ddprun::keeper {
namespace {

enum class Sent { kYes, kLater, kClosed };

Sent Send(int fd, const std::string& packet) {
  if (send(fd, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sent::kYes;
  const bool later = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == EINTR;
  return later ? Sent::kLater : Sent::kClosed;
}

}  // namespace

PacketQueue::Outcome PacketQueue::Push(int fd, std::string packet) {
  if (packets_.empty()) {
    const Sent sent = Send(fd, packet);
    if (sent == Sent::kYes) return Outcome::kOk;
    if (sent == Sent::kClosed) return Outcome::kClosed;
  }
  if (bytes_ + packet.size() > bytes_max_) return Outcome::kFull;
  bytes_ += packet.size();
  packets_.push_back(std::move(packet));
  return Outcome::kOk;
}

PacketQueue::Outcome PacketQueue::Flush(int fd) {
  while (!packets_.empty()) {
    const Sent sent = Send(fd, packets_.front());
    if (sent == Sent::kLater) break;
    if (sent == Sent::kClosed) return Outcome::kClosed;
    bytes_ -= packets_.front().size();
    packets_.pop_front();
  }
  return Outcome::kOk;
}

void PacketQueue::Clear() {
  packets_.clear();
  bytes_ = 0;
}

}  // namespace ddprun::keeper
