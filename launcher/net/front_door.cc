#include "launcher/net/front_door.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "launcher/net/first_bytes.h"
#include "launcher/net/limits.h"
#include "launcher/net/peer.h"

namespace ddprun::net {
namespace {

constexpr uint64_t kListenerBit = uint64_t{1} << 63;
constexpr int kEventsAtOnce = 64;
constexpr int kAcceptsAtOnce = 64;
constexpr size_t kDrainBytesMax = 64 * 1024;
constexpr rlim_t kFilesPerConnection = 4;  // two here and gRPC's; half of all files is for others

// How often the bytes of strangers are counted, as long as there are any.
constexpr std::chrono::milliseconds kCountEvery{5};

size_t BytesReceived(int fd) {
  tcp_info info = {};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  return static_cast<size_t>(info.tcpi_bytes_received);
}

bool Watch(int epoll, int operation, int fd, uint32_t events, uint64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

// Answers and closes. What the other side has sent is read first, for a socket with unread bytes
// is reset, and the answer lost.
void SayAndClose(int fd, const std::string& answer) {
  std::array<char, 4096> unread;
  for (size_t drained = 0; drained < kDrainBytesMax;) {
    const ssize_t n = recv(fd, unread.data(), unread.size(), MSG_DONTWAIT);
    if (n <= 0) break;
    drained += static_cast<size_t>(n);
  }
  if (!answer.empty()) {
    // A stranger that takes no answer gets none.
    [[maybe_unused]] const ssize_t sent =
        send(fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
  }
  close(fd);
}

}  // namespace

FrontDoorLimits DefaultLimits() {
  rlimit files = {};
  size_t most = kConnectionsMax;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    most = std::min<size_t>(most, files.rlim_cur / kFilesPerConnection);
  }
  return {most,
          std::min(most, kConnectionsPerPeerMax),
          std::min(most / 2, kStrangersMax),
          std::min(most / 4, kStrangersPerPeerMax),
          kFirstBytesSeconds,
          kAdmissionSeconds};
}

FrontDoor::FrontDoor(Options options) : options_(std::move(options)) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  bool ok = epoll_ >= 0 && wake_ >= 0 && Watch(epoll_, EPOLL_CTL_ADD, wake_, EPOLLIN, 0);
  for (int fd : options_.listener.fds()) {
    ok = ok && Watch(epoll_, EPOLL_CTL_ADD, fd, EPOLLIN, kListenerBit | static_cast<uint64_t>(fd));
  }
  if (!ok) std::abort();  // at the start of the process there are descriptors
  thread_ = std::thread([this] { Run(); });
}

void FrontDoor::Stop() {
  if (over_.exchange(true)) return;
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) std::abort();
  thread_.join();
}

FrontDoor::~FrontDoor() {
  Stop();
  for (auto& [id, connection] : connections_) close(connection.fd);
  close(epoll_);
  close(wake_);
  if (spare_ >= 0) close(spare_);
}

void FrontDoor::Admitted(const std::string& peer) {
  std::lock_guard lock(mutex_);
  auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  auto connection = connections_.find(found->second);
  if (connection == connections_.end() || connection->second.cut) return;
  connection->second.admitted = true;
  NoStranger(found->second, connection->second);
}

void FrontDoor::Run() {
  std::array<epoll_event, kEventsAtOnce> events;
  while (!over_) {
    const int count = epoll_wait(epoll_, events.data(), kEventsAtOnce, Timeout());
    Outcome out;
    {
      std::lock_guard lock(mutex_);
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[i].data.u64;
        if (id == 0) continue;
        if ((id & kListenerBit) != 0) {
          Accept(static_cast<int>(id & ~kListenerBit), &out);
          continue;
        }
        auto found = connections_.find(id);
        if (found == connections_.end()) continue;
        if (found->second.handed_over) {
          Ended(id, &out);
        } else {
          Look(id, &out);
        }
      }
      if (Clock::now() >= next_deadline_) CutLate(&out);
      if (!strangers_.empty() && Clock::now() >= next_count_) CutTalkative(&out);
    }
    for (int fd : out.fds) options_.hand_over(fd);
    for (const auto& call : out.calls) call();
  }
}

// Milliseconds until the next stranger is late; -1: there is none.
int FrontDoor::Timeout() {
  std::lock_guard lock(mutex_);
  if (next_deadline_ == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                        std::min(next_deadline_, next_count_) - Clock::now())
                        .count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

void FrontDoor::Accept(int listener, Outcome* out) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Welcome(fd, out);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if ((errno != EMFILE && errno != ENFILE) || spare_ < 0) return;
    // Left in the queue it would wake us for ever.
    close(spare_);
    fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    Tell("", v1::Refusal::LIMIT, "no file descriptor is left (ulimit -n)", out);
  }
}

void FrontDoor::Welcome(int fd, Outcome* out) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof address;
  Connection connection;
  connection.fd = fd;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    close(fd);  // it is gone already
    return;
  }
  connection.peer = PeerText(address, &connection.host);
  Host& host = hosts_[connection.host];
  const FrontDoorLimits& limits = options_.limits;
  const bool too_many = connections_.size() >= limits.connections_max;
  if (too_many || host.connections >= limits.connections_per_peer_max) {
    Tell(connection.peer, v1::Refusal::LIMIT,
         absl::StrCat("there are ", too_many ? connections_.size() : host.connections,
                      " connections", too_many ? "" : absl::StrCat(" from ", connection.host),
                      " already, and no more are taken", too_many ? " (ulimit -n)" : ""),
         out);
    if (host.connections == 0) hosts_.erase(connection.host);
    close(fd);
    return;
  }
  if (host.strangers.size() >= limits.strangers_per_peer_max) {
    CutOldest(host.strangers,
              absl::StrCat("more than ", limits.strangers_per_peer_max, " connections from ",
                           connection.host, " have not said who they are: the oldest is cut"),
              out);
  } else if (strangers_.size() >= limits.strangers_max) {
    CutOldest(strangers_,
              absl::StrCat("more than ", limits.strangers_max,
                           " connections have not said who they are: the oldest is cut"),
              out);
  }
  // Before it is known, only little of what it sends is held.
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes, sizeof kReceiveBufferBytes);
  const uint64_t id = next_id_++;
  connection.since = Clock::now();
  connection.deadline = connection.since + limits.first_bytes;
  next_deadline_ = std::min(next_deadline_, connection.deadline);
  // Edges: a beginning of a preface stays unread, and must not wake us again.
  if (!Watch(epoll_, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, id)) {
    close(fd);
    return;
  }
  by_peer_[connection.peer] = id;
  Host& entry = hosts_[connection.host];  // cutting another may have removed it
  ++entry.connections;
  entry.strangers.insert(id);
  strangers_.insert(id);
  connections_[id] = std::move(connection);
}

// A stranger has said something, or gone.
void FrontDoor::Look(uint64_t id, Outcome* out) {
  Connection& connection = connections_[id];
  std::array<char, kFirstBytesMax> bytes = {};
  const ssize_t got = recv(connection.fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {  // a health check, a port scan: nothing was said, and nothing is to be told
    close(connection.fd);
    return Remove(id);
  }
  const absl::string_view text(bytes.data(), static_cast<size_t>(got));
  const Speech speech = Recognise(text);
  const v1::Refusal::Kind malformed = v1::Refusal::MALFORMED;
  switch (speech) {
    case Speech::kUndecided:
      return;
    case Speech::kTls:
      if (options_.tls) return HandOver(id, connection, out);
      // TLS libraries call an answer in plain text "wrong version number".
      return Turn(id, v1::Refusal::TLS,
                  "it speaks TLS, and this coordinator plain text: leave --tls-ca out there, or "
                  "give --tls-cert and --tls-key here",
                  Http2Goodbye("this coordinator speaks plain text"), out);
    case Speech::kHttp2:
      if (!options_.tls) return HandOver(id, connection, out);
      return Turn(id, v1::Refusal::TLS,
                  "it speaks plain text, and this coordinator TLS: give --tls-ca there",
                  Http2Goodbye("this coordinator speaks TLS: give --tls-ca"), out);
    case Speech::kHttp1:
      return Turn(id, malformed, "it speaks HTTP/1; this is no web server",
                  options_.tls ? "" : Http1Goodbye("this is a ddprun coordinator"), out);
    case Speech::kOther:
      return Turn(id, malformed,
                  absl::StrCat("it speaks neither TLS nor gRPC; its first bytes: ",
                               absl::BytesToHexString(text.substr(0, 8))),
                  "", out);
  }
}

void FrontDoor::HandOver(uint64_t id, Connection& connection, Outcome* out) {
  const int own = fcntl(connection.fd, F_DUPFD_CLOEXEC, 0);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.fd, nullptr);
  // Only that both directions are over is of interest, which is always reported.
  if (own < 0 || !Watch(epoll_, EPOLL_CTL_ADD, own, EPOLLET, id)) {
    if (own >= 0) close(own);
    return Turn(id, v1::Refusal::LIMIT, "no file descriptor is left (ulimit -n)", "", out);
  }
  out->fds.push_back(std::exchange(connection.fd, own));
  connection.handed_over = true;
  connection.deadline = connection.since + options_.limits.admission;
  next_deadline_ = std::min(next_deadline_, connection.deadline);
}

// gRPC has closed a connection, or its peer is gone.
void FrontDoor::Ended(uint64_t id, Outcome* out) {
  const Connection& connection = connections_[id];
  if (!connection.admitted && !connection.cut && options_.tls) {
    const std::string problem =
        options_.tls_problem(connection.since.time_since_epoch() / std::chrono::nanoseconds(1));
    Tell(connection.peer, v1::Refusal::TLS,
         absl::StrCat("the TLS connection ended before anything was said",
                      problem.empty() ? "" : absl::StrCat(": ", problem)),
         out);
  }
  close(connection.fd);
  Remove(id);
}

void FrontDoor::CutOldest(const std::set<uint64_t>& strangers, const std::string& reason,
                          Outcome* out) {
  if (!strangers.empty()) Turn(*strangers.begin(), v1::Refusal::LIMIT, reason, "", out);
}

void FrontDoor::CutLate(Outcome* out) {
  const Clock::time_point now = Clock::now();
  std::vector<uint64_t> late;
  next_deadline_ = Clock::time_point::max();
  for (uint64_t id : strangers_) {
    const Connection& connection = connections_[id];
    if (connection.deadline <= now) {
      late.push_back(id);
    } else {
      next_deadline_ = std::min(next_deadline_, connection.deadline);
    }
  }
  for (uint64_t id : late) {
    Turn(id, v1::Refusal::LIMIT,
         connections_[id].handed_over ? "it has not proven the job's secret in time"
                                      : "it is connected and says nothing that can be understood",
         "", out);
  }
}

// gRPC keeps a header until its end has come, and answers every ping: so strangers say little, each
// and together.
void FrontDoor::CutTalkative(Outcome* out) {
  std::vector<std::pair<size_t, uint64_t>> talkative;
  size_t sum = 0;
  for (uint64_t id : strangers_) {
    talkative.emplace_back(BytesReceived(connections_[id].fd), id);
    sum += talkative.back().first;
  }
  std::sort(talkative.rbegin(), talkative.rend());
  for (const auto& [bytes, id] : talkative) {
    const bool alone = bytes > kStrangerBytesMax;
    if (!alone && sum <= kStrangersBytesMax) break;
    Turn(id, v1::Refusal::LIMIT,
         alone ? absl::StrCat("it has sent more than ", kStrangerBytesMax,
                              " bytes without proving the job's secret")
               : absl::StrCat("connections that have not proven the job's secret have sent more "
                              "than ",
                              kStrangersBytesMax, " bytes together: the one with the most is cut"),
         "", out);
    sum -= bytes;
  }
  next_count_ = Clock::now() + kCountEvery;
}

// Sends a stranger away. One that gRPC has is ended from here, and removed when gRPC has closed it.
void FrontDoor::Turn(uint64_t id, v1::Refusal::Kind kind, const std::string& reason,
                     const std::string& answer, Outcome* out) {
  Connection& connection = connections_[id];
  Tell(connection.peer, kind, reason, out);
  if (connection.handed_over) {
    connection.cut = true;
    NoStranger(id, connection);
    shutdown(connection.fd, SHUT_RDWR);
    return;
  }
  SayAndClose(connection.fd, answer);
  Remove(id);
}

void FrontDoor::NoStranger(uint64_t id, const Connection& connection) {
  strangers_.erase(id);
  hosts_[connection.host].strangers.erase(id);
  if (strangers_.empty()) next_deadline_ = Clock::time_point::max();
}

void FrontDoor::Remove(uint64_t id) {
  const Connection& connection = connections_[id];
  NoStranger(id, connection);
  auto host = hosts_.find(connection.host);
  if (--host->second.connections == 0) hosts_.erase(host);
  auto peer = by_peer_.find(connection.peer);
  if (peer != by_peer_.end() && peer->second == id) by_peer_.erase(peer);
  connections_.erase(id);
}

void FrontDoor::Tell(const std::string& peer, v1::Refusal::Kind kind, std::string reason,
                     Outcome* out) {
  out->calls.push_back([this, peer, kind, reason = std::move(reason)]() mutable {
    options_.refused(peer, kind, std::move(reason));
  });
}

}  // namespace ddprun::net
