// StopBound: how long a keeper may take for an order to stop. One that stands still (a signal, a
// debugger, a disk) would hold up the whole job otherwise. Pure: nanoseconds of the caller's clock.
#pragma once

#include <cstdint>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

class StopBound {
 public:
  enum class Due {
    kNothing,
    kWake,    // it may have slept together with this process: it is woken, and gets a moment
    kKill,    // it has had its time
    kGiveUp,  // it was killed, and is still there
  };

  // The keeper needs the grace, and up to 10 s for processes that SIGKILL does not end at once. A
  // second order that is KILL comes from somebody who has waited already. Never moves later.
  void Ordered(v1::StopWorkers::Mode mode, double grace_seconds, int64_t now_ns) {
    const bool kill = mode == v1::StopWorkers::KILL;
    const int64_t patience_ns = kill && deadline_ns_ != 0 ? kAgainNs : kPatienceNs;
    const double grace = kill || !(grace_seconds > 0) ? 0 : grace_seconds;
    const int64_t grace_ns =
        grace < kGraceMaxSeconds ? static_cast<int64_t>(grace * 1e9) : kGraceMaxSeconds * kSecondNs;
    const int64_t deadline_ns = now_ns + grace_ns + patience_ns;
    if (next_ == Due::kNothing) next_ = Due::kWake;
    if (next_ != Due::kWake) return;
    if (deadline_ns_ == 0 || deadline_ns < deadline_ns_) deadline_ns_ = deadline_ns;
  }

  Due Pass(int64_t now_ns) {
    if (deadline_ns_ == 0 || now_ns < deadline_ns_) return Due::kNothing;
    const Due due = next_;
    next_ = due == Due::kWake ? Due::kKill : Due::kGiveUp;
    deadline_ns_ = now_ns + (due == Due::kWake ? kMomentNs : kDeathNs);
    return due;
  }

  int64_t deadline_ns() const { return deadline_ns_; }  // 0: none

 private:
  static constexpr int64_t kSecondNs = 1'000'000'000;
  static constexpr int64_t kGraceMaxSeconds = 31 * 86400;
  static constexpr int64_t kPatienceNs = 13 * kSecondNs;
  static constexpr int64_t kAgainNs = 5 * kSecondNs;
  static constexpr int64_t kMomentNs = kSecondNs;
  static constexpr int64_t kDeathNs = 5 * kSecondNs;

  int64_t deadline_ns_ = 0;
  Due next_ = Due::kNothing;
};

}  // namespace ddprun::agent
