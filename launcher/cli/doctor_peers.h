// `ddprun doctor --peers`: asks other machines over ssh, and compares them with this one.
//
// Each peer is asked in a thread of its own within kPeerTimeMax. What peers say is from outside: it
// is bounded, made printable, and only compared. The judgements are pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"

namespace ddprun::doctor {

inline constexpr std::chrono::seconds kPeerTimeMax{40};

struct PeerOptions {
  std::string ssh = "ssh";  // as typed, with its options
  std::string ddprun;       // its path there
  std::string run_dir;      // absolute
};

// One exchange of times, in nanoseconds: asked and answered by our clock, the peer's between.
struct ClockSample {
  int64_t asked = 0;
  int64_t theirs = 0;
  int64_t answered = 0;
};
// How far the peer's clock is ahead, from the quickest sample, and how far that may be wrong.
struct ClockOffset {
  double seconds = 0;
  double uncertainty_seconds = 0;
};
ClockOffset OffsetOf(const std::vector<ClockSample>& samples);

struct PeerNames {
  std::string typed;                   // as in --peers, without user@
  std::vector<std::string> addresses;  // of `typed`, here
  std::string error;
  std::string own;                           // our host name
  std::vector<std::string> addresses_there;  // of `own`, on the peer
  std::string error_there;
};

struct Connection {
  std::string from, to;  // numeric addresses
  std::string error;     // "" when it works
};

std::vector<Finding> JudgeVersions(const Report& ours, const Report& theirs);
Finding JudgeOffset(const ClockOffset& offset);
Finding JudgePeerNames(const PeerNames& names);
Finding JudgeConnections(const Connection& there, const Connection& back);
Finding JudgePeerReport(const Report& theirs);

// Asks all peers at once; `on_finding` gets each one's findings in the order of `peers`, named
// "b: clock". Blocks; the calling thread alone calls on_finding.
void AskPeers(const std::vector<std::string>& peers, const PeerOptions& options, const Report& ours,
              const std::function<void(const Finding&)>& on_finding);

}  // namespace ddprun::doctor
