// What the answers of a peer mean. Pure.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/doctor_peers.h"
#include "launcher/net/address.h"

namespace ddprun::doctor {
namespace {

constexpr double kRefusedSeconds = 300;  // a joining node whose clock is further off is refused
constexpr double kLooseSeconds = 1;

std::string FactOf(const Report& report, const char* key) {
  const auto found = report.facts.find(key);
  return found == report.facts.end() ? "" : found->second;
}

// Same major number, minor numbers at most one apart.
bool GoTogether(const std::string& ours, const std::string& theirs) {
  const std::vector<std::string> a = absl::StrSplit(ours, '.');
  const std::vector<std::string> b = absl::StrSplit(theirs, '.');
  int minor_a = 0;
  int minor_b = 0;
  if (a.size() < 2 || b.size() < 2 || a[0] != b[0]) return false;
  if (!absl::SimpleAtoi(a[1], &minor_a) || !absl::SimpleAtoi(b[1], &minor_b)) return false;
  return std::abs(minor_a - minor_b) <= 1;
}

struct Compared {
  const char* key;
  const char* name;
  bool must;  // else nodes may differ, which is worth a note
  const char* meaning;
  const char* fix;
};

constexpr Compared kCompared[] = {
    {"libtorch", "LibTorch", true, "a train.cfg over both is refused when the node joins",
     "the same build on all nodes (scripts/package.sh makes a folder to copy)"},
    {"cuda", "CUDA", true, "a train.cfg over both is refused when the node joins",
     "the same build on all nodes"},
    {"nccl", "NCCL", true, "a train.cfg over both is refused when the node joins",
     "the same build on all nodes"},
    {"driver", "NVIDIA driver", false, "jobs run, but results and speed may differ",
     "the same driver on all nodes"},
    {"gpus", "GPU models", false,
     "the slowest one sets the pace, and results of unlike ones differ", "nodes of one kind"},
    {"python_torch", "Python's torch", false,
     "a PyTorch program over both may hang or fail in its first collective",
     "the same environment on all nodes"},
    {"mtu", "MTU", false,
     "large packets may be lost where a switch does not pass them on, and transfers then stand "
     "still",
     "ip link set dev CARD mtu N, the same on all nodes"},
};

}  // namespace

ClockOffset OffsetOf(const std::vector<ClockSample>& samples) {
  ClockOffset offset;
  double least = std::numeric_limits<double>::infinity();
  for (const ClockSample& sample : samples) {
    const double round_trip = static_cast<double>(sample.answered - sample.asked) * 1e-9;
    if (round_trip < 0 || round_trip >= least) continue;
    least = round_trip;
    // The peer looked at its clock some time between; in the middle, if both ways take as long.
    offset.seconds = static_cast<double>(sample.theirs - sample.asked) * 1e-9 - round_trip / 2;
    offset.uncertainty_seconds = round_trip / 2;
  }
  return offset;
}

std::vector<Finding> JudgeVersions(const Report& ours, const Report& theirs) {
  std::vector<Finding> findings;
  if (!GoTogether(ours.version, theirs.version)) {
    findings.push_back(Problem(
        "versions", absl::StrCat("ddprun ", theirs.version, " there, ", ours.version, " here"),
        "they may be one minor version apart; this node is refused when it "
        "joins",
        "the same ddprun on all nodes"));
  }
  std::vector<std::string> same = {absl::StrCat("ddprun ", theirs.version)};
  for (const Compared& compared : kCompared) {
    const std::string here = FactOf(ours, compared.key);
    const std::string there = FactOf(theirs, compared.key);
    if (here == there) {
      if (!here.empty()) same.push_back(absl::StrCat(compared.name, " ", here));
      continue;
    }
    const auto shown = [](const std::string& text) { return text.empty() ? "none" : text; };
    Finding finding =
        Note("versions",
             absl::StrCat(compared.name, " ", shown(there), " there, ", shown(here), " here"),
             compared.meaning, compared.fix);
    // What one side lacks may not be needed there; two that differ cannot work together.
    if (compared.must && !here.empty() && !there.empty()) finding.level = Level::kProblem;
    findings.push_back(std::move(finding));
  }
  if (findings.empty()) findings.push_back(Ok("versions", absl::StrJoin(same, ", ")));
  return findings;
}

Finding JudgeOffset(const ClockOffset& offset) {
  const std::string seen =
      absl::StrFormat("%.3f s %s ours, ± %.3f s", std::abs(offset.seconds),
                      offset.seconds >= 0 ? "ahead of" : "behind", offset.uncertainty_seconds);
  const double at_least = std::abs(offset.seconds) - offset.uncertainty_seconds;
  if (at_least > kRefusedSeconds) {
    return Problem("clock", seen, "more than 300 s: the node is refused when it joins",
                   "chrony or systemd-timesyncd on both");
  }
  if (at_least > kLooseSeconds) {
    return Note("clock", seen, "logs of both nodes are merged in a wrong order",
                "chrony or systemd-timesyncd on both");
  }
  return Ok("clock", seen);
}

Finding JudgePeerNames(const PeerNames& names) {
  const bool no_address_here = names.addresses.empty();
  const bool no_address_there = names.addresses_there.empty();
  const bool loopback_there =
      !no_address_there &&
      std::all_of(names.addresses_there.begin(), names.addresses_there.end(), net::IsLoopback);
  constexpr char kMeaning[] = "ddprun needs numeric addresses alone, but programs may use names";
  constexpr char kFix[] = "both machines in DNS, or in /etc/hosts of both";
  if (no_address_here || no_address_there) {
    std::vector<std::string> parts;
    if (no_address_here) {
      parts.push_back(absl::StrCat(names.typed, " has no address here (", names.error, ")"));
    }
    if (no_address_there) {
      parts.push_back(absl::StrCat(names.own, " has none there (", names.error_there, ")"));
    }
    return Note("names", absl::StrJoin(parts, ", "), kMeaning, kFix);
  }
  const std::string seen =
      absl::StrCat(names.typed, " is ", absl::StrJoin(names.addresses, ", "), " here, ", names.own,
                   " is ", absl::StrJoin(names.addresses_there, ", "), " there");
  if (loopback_there) return Note("names", seen, kMeaning, kFix);
  return Ok("names", seen);
}

Finding JudgeConnections(const Connection& there, const Connection& back) {
  constexpr char kName[] = "connections";
  if (there.error.empty() && back.error.empty()) {
    return Ok(kName, absl::StrCat(there.from, " and ", there.to, " reach each other"));
  }
  std::vector<std::string> parts;
  for (const Connection* one : {&there, &back}) {
    parts.push_back(
        absl::StrCat(one->from, " → ", one->to, ": ", one->error.empty() ? "works" : one->error));
  }
  const bool silent =
      absl::StrContains(there.error, "no answer") || absl::StrContains(back.error, "no answer");
  return Problem(kName, absl::StrJoin(parts, ", "),
                 "workers on both cannot exchange data, and a job over both does not start",
                 silent ? "a firewall between them (ufw, firewalld, security groups): let all TCP "
                          "ports between the nodes through; or another network with "
                          "--advertise-addr or --iface"
                        : "ip route and ip addr on both; choose another network with "
                          "--advertise-addr or --iface");
}

Finding JudgePeerReport(const Report& theirs) {
  std::vector<std::string> problems;
  for (const Finding& finding : theirs.findings) {
    if (finding.level == Level::kProblem) {
      problems.push_back(absl::StrCat(finding.name, ": ", finding.seen));
    }
  }
  const std::string summary = SummaryOf(theirs.findings);
  if (problems.empty()) return Ok("its own checks", summary);
  return Problem("its own checks", absl::StrCat(summary, ": ", absl::StrJoin(problems, "; ")),
                 "jobs on that machine fail", "run ddprun doctor there");
}

}  // namespace ddprun::doctor
