#include "worker/comm/message_mesh.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ddprun {
namespace {

constexpr uint64_t kGoodbyeSlot = ~uint64_t{0};

}  // namespace

MessageMesh::MessageMesh(int rank, std::vector<Descriptor> sockets,
                         std::function<absl::Status()> interrupt)
    : rank_(rank),
      interrupt_(std::move(interrupt)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(sockets.size()),
      polled_(sockets.size()) {
  for (size_t i = 0; i < sockets.size(); ++i) {
    peers_[i].rank = static_cast<int>(i);
    peers_[i].socket = std::move(sockets[i]);
  }
}

void MessageMesh::Throw(absl::StatusCode code, const std::string& message) {
  failure_ = absl::Status(code, message);
  for (Peer& peer : peers_) {
    peer.sends.clear();
    peer.receives.clear();
    peer.socket.Close();  // so that the other ranks learn of it
  }
  throw MeshError(code, message);
}

void MessageMesh::ThrowIfFailed() const {
  if (!failure_.ok()) throw MeshError(failure_.code(), std::string(failure_.message()));
}

void MessageMesh::Send(int peer, uint64_t slot, const void* data, size_t bytes, int* completed) {
  ThrowIfFailed();
  Peer& to = peers_[static_cast<size_t>(peer)];
  to.sends.push_back({{slot, bytes}, static_cast<const char*>(data), 0, completed});
  if (to.socket.get() < 0) Closed(to, "");
  if (to.sends.size() == 1) WriteSome(to);
}

void MessageMesh::Receive(int peer, uint64_t slot, void* data, size_t bytes, int* completed) {
  ThrowIfFailed();
  Peer& from = peers_[static_cast<size_t>(peer)];
  from.receives.push_back({slot, static_cast<char*>(data), bytes, completed});
  from.hung_up = false;  // poll tells again
  if (from.socket.get() < 0) Closed(from, "");
}

void MessageMesh::WaitUntilPositive(const int& completed) {
  ThrowIfFailed();
  while (completed <= 0) Poll(deadline_);
}

void MessageMesh::WaitForWake() {
  ThrowIfFailed();
  const auto own = static_cast<size_t>(rank_);
  do {
    Poll(absl::InfiniteFuture());
  } while ((polled_[own].revents & POLLIN) == 0);
}

void MessageMesh::Wake() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the waiter is awake already.
  (void)!write(wake_.get(), &one, sizeof(one));
}

void MessageMesh::Poll(absl::Time deadline) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    short events = POLLRDHUP;
    if (!peer.receives.empty()) events |= POLLIN;
    if (!peer.sends.empty()) events |= POLLOUT;
    // A negative descriptor is passed over.
    polled_[i] = {peer.hung_up && peer.sends.empty() ? -1 : peer.socket.get(), events, 0};
  }
  const auto own = static_cast<size_t>(rank_);
  polled_[own] = {wake_.get(), POLLIN, 0};
  int timeout_ms = -1;
  if (deadline != absl::InfiniteFuture()) timeout_ms = MillisecondsUntil(deadline);
  const int ready = poll(polled_.data(), polled_.size(), timeout_ms);
  if (ready < 0 && errno != EINTR) {
    Throw(absl::StatusCode::kInternal, absl::StrCat("poll: ", std::strerror(errno)));
  }
  if (ready <= 0) {
    if (absl::Now() >= deadline) Throw(absl::StatusCode::kDeadlineExceeded, "the time is up");
    for (pollfd& entry : polled_) entry.revents = 0;
    return;
  }
  if ((polled_[own].revents & POLLIN) != 0) {
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof(count));
    const absl::Status status = interrupt_();
    if (!status.ok()) Throw(status.code(), std::string(status.message()));
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i != own && polled_[i].revents != 0) HandleEvents(peers_[i], polled_[i].revents);
  }
}

void MessageMesh::HandleEvents(Peer& peer, short events) {
  if (peer.socket.get() < 0) return;
  if ((events & POLLOUT) != 0) WriteSome(peer);
  if ((events & ~POLLOUT) != 0) ReadSome(peer);
  // The peer has closed its end, and the message that comes next is not asked for yet.
  if ((events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) peer.hung_up = true;
}

void MessageMesh::WriteSome(Peer& peer) {
  while (!peer.sends.empty()) {
    Outgoing& message = peer.sends.front();
    const size_t total = sizeof(Header) + message.header.bytes;
    iovec parts[2];
    size_t count = 0;
    if (message.written < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<char*>(&message.header) + message.written,
                        sizeof(Header) - message.written};
    }
    const size_t data_written = std::max(message.written, sizeof(Header)) - sizeof(Header);
    if (data_written < message.header.bytes) {
      parts[count++] = {const_cast<char*>(message.data) + data_written,
                        message.header.bytes - data_written};
    }
    msghdr block = {};
    block.msg_iov = parts;
    block.msg_iovlen = count;
    const ssize_t sent = sendmsg(peer.socket.get(), &block, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      const std::string reason = std::strerror(errno);
      ReadSome(peer);  // its goodbye may be waiting there
      if (peer.socket.get() >= 0) Closed(peer, reason);
      return;
    }
    message.written += static_cast<size_t>(sent);
    if (message.written < total) continue;
    if (message.completed != nullptr) ++*message.completed;
    peer.sends.pop_front();
  }
}

void MessageMesh::ReadSome(Peer& peer) {
  while (ReadStep(peer)) {
  }
}

bool MessageMesh::ReadStep(Peer& peer) {
  const bool expected = !peer.receives.empty();
  if (!expected && peer.read == sizeof(Header)) return false;  // its receive will come
  iovec parts[2];
  size_t count = 0;
  if (peer.read < sizeof(Header)) {
    parts[count++] = {reinterpret_cast<char*>(&peer.header) + peer.read,
                      sizeof(Header) - peer.read};
  }
  const size_t data_read = std::max(peer.read, sizeof(Header)) - sizeof(Header);
  if (expected && data_read < peer.receives.front().bytes) {
    // Together with the header: its length is checked before anything is believed.
    parts[count++] = {peer.receives.front().data + data_read,
                      peer.receives.front().bytes - data_read};
  }
  if (count > 0) {
    msghdr block = {};
    block.msg_iov = parts;
    block.msg_iovlen = count;
    const ssize_t got = recvmsg(peer.socket.get(), &block, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
      Closed(peer, got == 0 ? "connection closed" : std::strerror(errno));
      return false;
    }
    peer.read += static_cast<size_t>(got);
  }
  if (peer.read < sizeof(Header)) return true;
  if (peer.header.slot == kGoodbyeSlot) {
    peer.has_left = true;
    peer.read = 0;
    return true;
  }
  if (!expected) return false;
  CheckHeader(peer);
  const Incoming& message = peer.receives.front();
  if (peer.read < sizeof(Header) + message.bytes) return true;
  ++*message.completed;
  peer.receives.pop_front();
  peer.read = 0;
  return !peer.receives.empty();
}

void MessageMesh::CheckHeader(const Peer& peer) {
  const Incoming& message = peer.receives.front();
  if (peer.header.slot == message.slot && peer.header.bytes == message.bytes) return;
  Throw(absl::StatusCode::kFailedPrecondition,
        absl::StrCat("rank ", peer.rank, " sent ", peer.header.bytes, " bytes of operation ",
                     absl::Hex(peer.header.slot), ", expected were ", message.bytes, " bytes of ",
                     absl::Hex(message.slot),
                     "; the ranks do not run the same operations in the same order"));
}

void MessageMesh::Closed(Peer& peer, const std::string& reason) {
  peer.socket.Close();
  if (!peer.has_left) {
    Throw(absl::StatusCode::kUnavailable,
          absl::StrCat("rank ", peer.rank, " is lost (", reason, ")"));
  }
  if (!peer.sends.empty() || !peer.receives.empty()) {
    Throw(absl::StatusCode::kUnavailable, absl::StrCat("rank ", peer.rank, " has left"));
  }
}

void MessageMesh::Leave(absl::Duration limit) {
  if (!failure_.ok()) return;
  const absl::Time deadline = absl::Now() + limit;
  const Header goodbye = {kGoodbyeSlot, 0};
  for (Peer& peer : peers_) {
    const int fd = peer.socket.get();
    // Nothing is under way between operations, so the goodbye is whole or not sent. An error means
    // that the peer has gone before us.
    while (fd >= 0 && send(fd, &goodbye, sizeof(goodbye), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
           errno == EAGAIN && WaitReady(fd, POLLOUT, deadline)) {
    }
    peer.socket.Close();
  }
}

}  // namespace ddprun
