#include "launcher/agent/reachability.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun::agent {
namespace {

using Outcome = PreparationResult::State;

// "No route to host" also means that nobody has said within 3 s whose card has the address, and
// such questions are lost when many nodes ask at once. A router that says it answers at once, each
// time.
constexpr int kTriesMax = 3;

// 0: connected; EINPROGRESS: *fd tells; else the error. EINVAL: no numeric address.
int BeginConnect(const ReachabilityCheck::Target& target, int* fd) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(target.port);
  if (getaddrinfo(target.address.c_str(), port.c_str(), &hints, &found) != 0) return EINVAL;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd < 0) return errno;
  return connect(*fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
}

// Somebody has answered at that address, be it with a refusal. (Where this machine lacks
// descriptors or ports it says nothing about the address.)
bool Reached(int error) {
  switch (error) {
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ETIMEDOUT:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EACCES:
    case EPERM:
      return false;
    default:
      return true;
  }
}

std::string Endpoint(const ReachabilityCheck::Target& target) {
  const bool six = target.address.find(':') != std::string::npos;
  return absl::StrCat(six ? "[" : "", target.address, six ? "]:" : ":", target.port);
}

}  // namespace

std::vector<ReachabilityCheck::Target> ReachabilityTargets(const v1::StartWorkers& order) {
  std::vector<ReachabilityCheck::Target> targets;
  const auto& nodes = order.nodes();
  const auto who = [&nodes](int group_rank, const char* otherwise) {
    return group_rank < nodes.size() ? absl::StrCat("node ", nodes[group_rank].node())
                                     : std::string(otherwise);
  };
  if (order.group_world_size() < 2) return targets;
  // What rank 0 is told to listen on may be a name that a person chose.
  const std::string master = nodes.empty() ? order.master_address() : nodes[0].address();
  if (order.group_rank() != 0 && !master.empty()) {
    targets.push_back(
        {absl::StrCat(who(0, "the node of rank 0"), " (rank 0)"), master, order.master_port()});
  }
  const uint32_t next = (order.group_rank() + 1) % order.group_world_size();
  if (next != 0 && !order.next_address().empty()) {
    targets.push_back(
        {who(static_cast<int>(next), "the next node"), order.next_address(), order.master_port()});
  }
  return targets;
}

std::unique_ptr<PreparationStep> ReachabilityStep(const v1::StartWorkers& order,
                                                  const OwnAddress& own) {
  const double seconds = order.spec().membership().address_check_seconds();
  if (seconds <= 0) return nullptr;
  std::vector<ReachabilityCheck::Target> targets = ReachabilityTargets(order);
  if (targets.empty()) return nullptr;
  return std::make_unique<ReachabilityCheck>(std::move(targets), own, seconds);
}

ReachabilityCheck::~ReachabilityCheck() {
  for (const Attempt& attempt : waiting_) close(attempt.fd);
}

void ReachabilityCheck::Begin(int64_t now_ns) {
  begun_ = true;
  deadline_ns_ = now_ns + static_cast<int64_t>(seconds_ * 1e9);
  for (size_t i = 0; i < targets_.size(); ++i) {
    int fd = -1;
    const int error = BeginConnect(targets_[i], &fd);
    if (error == EINPROGRESS) {
      waiting_.push_back({i, fd, 1});
      continue;
    }
    if (fd >= 0) close(fd);
    Conclude(i, error);
  }
}

void ReachabilityCheck::Conclude(size_t target, int error) {
  if (!Reached(error)) AddProblem(target, strerrordesc_np(error));
}

void ReachabilityCheck::AddProblem(size_t target, const std::string& why) {
  if (problems_.empty()) unreachable_ = targets_[target].address;
  problems_.push_back(
      absl::StrCat(targets_[target].who, " at ", Endpoint(targets_[target]), ": ", why));
}

PreparationResult ReachabilityCheck::Advance(int64_t now_ns) {
  if (!begun_) Begin(now_ns);
  if (cancelled_) return {Outcome::kFailed, "the check of the addresses was cancelled"};
  std::vector<Attempt> still;
  for (const Attempt& attempt : std::exchange(waiting_, {})) {
    pollfd poll_one = {attempt.fd, POLLOUT, 0};
    if (poll(&poll_one, 1, 0) == 0) {
      still.push_back(attempt);
      continue;
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(attempt.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    close(attempt.fd);
    if (error == EHOSTUNREACH && attempt.tries < kTriesMax) {
      int fd = -1;
      error = BeginConnect(targets_[attempt.target], &fd);
      if (error == EINPROGRESS) {
        still.push_back({attempt.target, fd, attempt.tries + 1});
        continue;
      }
      if (fd >= 0) close(fd);
    }
    Conclude(attempt.target, error);
  }
  waiting_ = std::move(still);
  if (!problems_.empty()) return Failure(absl::StrJoin(problems_, "; "));
  if (waiting_.empty()) return {Outcome::kReady, ""};
  if (now_ns < deadline_ns_) return {};
  for (const Attempt& attempt : waiting_) {
    AddProblem(attempt.target, absl::StrCat("no answer within ", seconds_, " s"));
  }
  return Failure(absl::StrJoin(problems_, "; "));
}

PreparationResult ReachabilityCheck::Failure(const std::string& reasons) const {
  return {Outcome::kFailed,
          absl::StrCat("node ", own_.node, ", whose address is ", own_.address,
                       own_.interface.empty() ? "" : absl::StrCat(" on card ", own_.interface),
                       ", cannot reach ", reasons,
                       "; give the address or the card that the other nodes reach by "
                       "--advertise-addr or --iface on the node that has the wrong one"),
          unreachable_};
}

void ReachabilityCheck::AddPolls(std::vector<pollfd>* polls) const {
  for (const Attempt& attempt : waiting_) polls->push_back({attempt.fd, POLLOUT, 0});
}

}  // namespace ddprun::agent
