// PacketBudget: how many packets a worker may send, so that one that says too much takes nothing
// from the others. A bucket of packets and bytes that fills as time goes by.
//
// Pure: the time is an argument (CLOCK_BOOTTIME, nanoseconds). The burst is that of the largest
// start (each of 4,096 ranks asks for the address of every other); the rate is far above what
// training says (a packet a second).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ddprun::keeper {

class PacketBudget {
 public:
  static constexpr int64_t kPacketsPerSecond = 2000;
  static constexpr int64_t kPacketsBurst = 20'000;
  static constexpr int64_t kBytesPerSecond = int64_t{4} << 20;
  static constexpr int64_t kBytesBurst = int64_t{32} << 20;

  // False: above the budget; nothing was taken from it.
  bool Take(size_t bytes, int64_t now_ns) {
    constexpr int64_t kSecondNs = 1'000'000'000;
    constexpr int64_t kFullAfterNs = 60 * kSecondNs;  // both are full again long before
    const int64_t passed_ns = std::clamp<int64_t>(now_ns - last_ns_, 0, kFullAfterNs);
    // In units of which a second brings a whole number, so that nothing is lost in rounding.
    const int64_t microseconds = passed_ns / 1000;
    if (microseconds > 0) {
      last_ns_ = passed_ns == kFullAfterNs ? now_ns : last_ns_ + microseconds * 1000;
      millionths_ =
          std::min(millionths_ + microseconds * kPacketsPerSecond, kPacketsBurst * kScale);
      byte_millionths_ =
          std::min(byte_millionths_ + microseconds * kBytesPerSecond, kBytesBurst * kScale);
    }
    const int64_t cost = static_cast<int64_t>(bytes) * kScale;
    if (millionths_ < kScale || byte_millionths_ < cost) return false;
    millionths_ -= kScale;
    byte_millionths_ -= cost;
    return true;
  }

 private:
  static constexpr int64_t kScale = 1'000'000;
  int64_t last_ns_ = 0;
  int64_t millionths_ = kPacketsBurst * kScale;
  int64_t byte_millionths_ = kBytesBurst * kScale;
};

}  // namespace ddprun::keeper
