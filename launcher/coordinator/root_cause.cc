#include "launcher/coordinator/root_cause.h"

#include <csignal>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace ddprun::coordinator {
namespace {

bool IsCommunication(const Worker& worker) {
  return worker.failed && worker.failed->kind() == v1::WorkerFailed::COMMUNICATION;
}

bool EndedByItself(const Worker& worker) {
  return worker.exited && !worker.exited->stopped_by_us() &&
         (worker.exited->signal() != 0 || worker.exited->exit_code() != 0);
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// When this worker first showed that it failed by itself; kNever if it did not.
int64_t EvidenceNs(const Worker& worker) {
  int64_t evidence = kNever;
  if (worker.failed && !IsCommunication(worker)) evidence = worker.failed->time_ns();
  if (EndedByItself(worker) && !IsCommunication(worker)) {
    evidence = std::min(evidence, worker.exited->time_ns());
  }
  return evidence;
}

int64_t CommunicationNs(const Worker& worker) {
  return IsCommunication(worker) ? worker.failed->time_ns() : kNever;
}

std::string Describe(const Worker& worker) {
  std::string text;
  if (worker.failed && !worker.failed->message().empty()) text = worker.failed->message();
  if (worker.exited && EndedByItself(worker)) {
    std::string end = DescribeExit(*worker.exited);
    text = text.empty() ? end : absl::StrCat(end, ": ", text);
  }
  return text.empty() ? "failed" : text;
}

}  // namespace

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string DescribeExit(const v1::WorkerExited& exited) {
  if (exited.signal() != 0) return absl::StrCat("was killed by ", SignalName(exited.signal()));
  return absl::StrCat("exited with code ", exited.exit_code());
}

std::string ExitCause(const Worker& worker, const v1::WorkerExited& exited) {
  if (exited.signal() == 0 && exited.exit_code() == 0) {
    return exited.stopped_by_us() && !exited.finished() ? "stopped" : "finished";
  }
  if (IsCommunication(worker)) return "secondary";
  if (exited.stopped_by_us()) return "stopped";
  return "failed";
}

RootCause FindRootCause(const Generation& generation,
                        const std::map<std::string, int64_t>& offsets_ns) {
  auto earliest = [&](auto time_of) {
    int64_t best = kNever, rank = -1;
    for (size_t i = 0; i < generation.workers.size(); ++i) {
      int64_t when = time_of(generation.workers[i]);
      if (when == kNever) continue;
      auto offset = offsets_ns.find(generation.workers[i].node);
      if (offset != offsets_ns.end()) when += offset->second;
      if (when < best) {
        best = when;
        rank = static_cast<int64_t>(i);
      }
    }
    return rank;
  };
  int64_t rank = earliest(EvidenceNs);
  if (rank >= 0) return {rank, Describe(generation.workers[rank]), true};
  rank = earliest(CommunicationNs);
  if (rank >= 0) {
    return {rank,
            absl::StrCat("lost its peers, and none of them shows why: ",
                         Describe(generation.workers[rank])),
            false};
  }
  return {-1, generation.end_reason, !generation.end_reason.empty()};
}

}  // namespace ddprun::coordinator
