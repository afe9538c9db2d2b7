#include "launcher/coordinator/root_cause.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kGroupsMax = 16;
constexpr size_t kGroupTextBytesMax = 400;  // as a line of a log tail
// A worker keeps, and a log line shows, less than a rank may say.
constexpr size_t kRefusalBytesCompared = 120;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

bool EndedBadly(const Worker& worker) {
  return worker.exited && (worker.exited->signal() != 0 || worker.exited->exit_code() != 0);
}

bool EndedByItself(const Worker& worker) {
  return EndedBadly(worker) && !worker.exited->stopped_by_us();
}

// PyTorch's @record writes down whatever exception ended a rank, also one that says that a peer is
// gone; the hint then speaks of its words.
bool HasOwnReport(const Worker& worker) {
  if (worker.failed && worker.failed->kind() != v1::WorkerFailed::COMMUNICATION) return true;
  return worker.exited && worker.exited->has_error() &&
         worker.exited->hint() != v1::HINT_COMMUNICATION;
}

// When this worker first showed that it failed by itself; kNever if it did not.
int64_t EvidenceNs(const Worker& worker) {
  if (IsCommunication(worker)) return kNever;
  int64_t evidence = kNever;
  if (worker.failed) evidence = worker.failed->time_ns();
  if (worker.exited && worker.exited->has_error() && worker.exited->error().time_ns() != 0) {
    evidence = std::min(evidence, worker.exited->error().time_ns());
  }
  if (EndedByItself(worker)) evidence = std::min(evidence, worker.exited->time_ns());
  return evidence;
}

// It was on its way out when the order to stop came: no order makes a process end like this.
int64_t DyingNs(const Worker& worker) {
  if (IsCommunication(worker) || !EndedBadly(worker) || !worker.exited->stopped_by_us()) {
    return kNever;
  }
  // libddprun's workers leave with a code of their own when they are told to.
  if (worker.ready || !worker.exited->phase().empty()) return kNever;
  const int signal = worker.exited->signal(), code = worker.exited->exit_code();
  const bool by_order = signal == SIGTERM || signal == SIGKILL || signal == SIGINT ||
                        code == 128 + SIGTERM || code == 128 + SIGINT || code == 128 + SIGKILL;
  return by_order ? kNever : worker.exited->time_ns();
}

int64_t CommunicationNs(const Worker& worker) {
  if (!IsCommunication(worker)) return kNever;
  if (worker.failed) return worker.failed->time_ns();
  return worker.exited->time_ns();
}

absl::string_view FirstLine(absl::string_view text) {
  return text.substr(0, text.find('\n'));
}

// "[rank3]: ValueError: …", as PyTorch prints it, is the same in every rank but for the number.
absl::string_view WithoutRank(absl::string_view line) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "[rank")) return line;
  while (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest.front())) != 0) {
    rest.remove_prefix(1);
  }
  return absl::ConsumePrefix(&rest, "]:") ? absl::StripLeadingAsciiWhitespace(rest) : line;
}

std::string LastWords(const Worker& worker) {
  if (worker.failed && !worker.failed->message().empty()) {
    return std::string(FirstLine(worker.failed->message()));
  }
  if (!worker.exited) return "";
  if (worker.exited->has_error()) return std::string(FirstLine(worker.exited->error().message()));
  if (worker.exited->has_out_of_memory()) return worker.exited->out_of_memory().text();
  for (int i = worker.exited->log_tail_size(); i > 0; --i) {
    const absl::string_view line = WithoutRank(worker.exited->log_tail(i - 1));
    if (!absl::StripAsciiWhitespace(line).empty()) return std::string(line);
  }
  return DescribeExit(*worker.exited);
}

std::string Describe(const Worker& worker) {
  std::string text;
  if (worker.failed && !worker.failed->message().empty()) {
    text = worker.failed->message();
  } else if (worker.exited && worker.exited->has_error()) {
    text = std::string(FirstLine(worker.exited->error().message()));
  }
  if (worker.exited && EndedBadly(worker)) {
    std::string end = DescribeExit(*worker.exited);
    text = text.empty() ? end : absl::StrCat(end, ": ", text);
  }
  return text.empty() ? "failed" : text;
}

// The rank failed since another one could not write its part of a checkpoint: its own report, its
// error file or the end of its log says what it was told.
bool QuotesRefusal(const Worker& worker, const Generation& generation) {
  if (!generation.refused) return false;
  const std::string told = generation.refused->dropped.substr(0, kRefusalBytesCompared);
  if (worker.failed && absl::StrContains(worker.failed->message(), told)) return true;
  if (!worker.exited) return false;
  const v1::WorkerExited& exited = *worker.exited;
  if (exited.has_error() && absl::StrContains(exited.error().message(), told)) return true;
  return std::any_of(exited.log_tail().begin(), exited.log_tail().end(),
                     [&](const std::string& line) { return absl::StrContains(line, told); });
}

RootCause RefusalCause(const Generation& generation, int64_t ended_by) {
  const RefusedCheckpoint& refused = *generation.refused;
  RootCause cause{refused.rank, absl::StrCat("could not write its part of the checkpoint of step ",
                                             refused.step, ": ", refused.reason)};
  if (ended_by != cause.rank) cause.ended_by = ended_by;
  return cause;
}

}  // namespace

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string DescribeExit(const v1::WorkerExited& exited) {
  if (exited.has_out_of_memory()) {
    const std::string& text = exited.out_of_memory().text();
    // A wrapper ends with a code when the kernel kills what it had started.
    const std::string end = exited.signal() != 0
                                ? absl::StrCat("was killed by ", SignalName(exited.signal()))
                                : absl::StrCat("exited with code ", exited.exit_code());
    return absl::StrCat(end, ": ", text.empty() ? "OOM-killed" : text);
  }
  if (exited.signal() != 0) return absl::StrCat("was killed by ", SignalName(exited.signal()));
  return absl::StrCat("exited with code ", exited.exit_code());
}

bool IsCommunication(const Worker& worker) {
  if (HasOwnReport(worker)) return false;
  if (worker.failed) return true;
  if (!worker.exited || worker.exited->has_out_of_memory()) return false;
  return worker.exited->hint() == v1::HINT_COMMUNICATION;
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
                        const std::map<std::string, int64_t>& offsets_ns, bool workers_abort) {
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
  if (rank >= 0 && QuotesRefusal(generation.workers[rank], generation)) {
    return RefusalCause(generation, rank);
  }
  if (rank >= 0) return {rank, Describe(generation.workers[rank]), true};
  const int64_t lost = earliest(CommunicationNs);
  if (lost >= 0 && !workers_abort) {
    rank = earliest(DyingNs);
    if (rank >= 0) return {rank, Describe(generation.workers[rank]), true};
  }
  if (lost >= 0) {
    return {lost,
            absl::StrCat("lost its peers, and none of them shows why: ",
                         Describe(generation.workers[lost])),
            false};
  }
  return {-1, generation.end_reason, !generation.end_reason.empty()};
}

std::vector<uint32_t> SecondaryRanks(const Generation& generation, int64_t root) {
  std::vector<uint32_t> ranks;
  for (size_t rank = 0; rank < generation.workers.size(); ++rank) {
    const Worker& worker = generation.workers[rank];
    const bool quotes =
        generation.refused && generation.refused->rank == root && QuotesRefusal(worker, generation);
    if (static_cast<int64_t>(rank) != root && EndedBadly(worker) &&
        (IsCommunication(worker) || quotes)) {
      ranks.push_back(static_cast<uint32_t>(rank));
    }
  }
  return ranks;
}

std::vector<FailureGroup> GroupLastWords(const Generation& generation) {
  std::map<std::string, std::vector<uint32_t>> by_text;
  for (size_t rank = 0; rank < generation.workers.size(); ++rank) {
    const Worker& worker = generation.workers[rank];
    // One that was on its way out when the others were stopped has said its last words too.
    const bool speaks =
        worker.failed || EndedByItself(worker) || HasOwnReport(worker) || DyingNs(worker) != kNever;
    if (!speaks) continue;
    by_text[LastWords(worker).substr(0, kGroupTextBytesMax)].push_back(static_cast<uint32_t>(rank));
  }
  std::vector<FailureGroup> groups;
  groups.reserve(by_text.size());
  for (auto& [text, ranks] : by_text) groups.push_back({std::move(ranks), text});
  std::stable_sort(groups.begin(), groups.end(), [](const FailureGroup& a, const FailureGroup& b) {
    return a.ranks.size() > b.ranks.size();
  });
  if (groups.size() > kGroupsMax) groups.resize(kGroupsMax);
  return groups;
}

}  // namespace ddprun::coordinator
