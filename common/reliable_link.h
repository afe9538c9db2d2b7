// ReliableLink: one direction pair of numbered messages over a channel that may lose, repeat, delay
// and reorder.
//
// Each side has one per peer incarnation. Send() numbers a message and remembers it until
// acknowledged; Receive() says whether an incoming one is the next (take it), old (drop it) or
// early (drop it, it comes again); the receiver's cumulative number goes back in every message's
// `ack`. A selective repeat would save traffic; go-back-N is enough for a few messages a second.
// Pure values: no clock, thread or I/O. Message needs sequence/ack accessors as protobuf makes
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace ddprun {

template <typename Outgoing>
class ReliableLink {
 public:
  // More than this many unacknowledged messages mean that the peer is as good as gone.
  static constexpr size_t kUnacknowledgedMax = 100000;

  // With `retain` false nothing is kept for repeating: for channels that lose nothing while they
  // stand.
  explicit ReliableLink(bool retain = true) : retain_(retain) {}

  // Numbers the message and stamps the current acknowledgement on it.
  Outgoing Send(Outgoing message) {
    message.set_sequence(++last_sent_);
    message.set_ack(last_received_);
    if (retain_) unacknowledged_.push_back(message);
    return message;
  }

  // True when a message with this number is the next one and is to be handled now. Number 0 always
  // is.
  bool Receive(uint64_t sequence, uint64_t ack) {
    while (!unacknowledged_.empty() && unacknowledged_.front().sequence() <= ack) {
      unacknowledged_.pop_front();
    }
    if (sequence == 0) return true;
    if (sequence != last_received_ + 1) return false;
    last_received_ = sequence;
    return true;
  }

  // Everything the peer has not acknowledged, oldest first, with fresh acknowledgements.
  std::vector<Outgoing> Unacknowledged() const {
    std::vector<Outgoing> again(unacknowledged_.begin(), unacknowledged_.end());
    for (auto& message : again) message.set_ack(last_received_);
    return again;
  }

  uint64_t last_received() const { return last_received_; }
  bool overflowed() const { return unacknowledged_.size() > kUnacknowledgedMax; }

 private:
  bool retain_;
  uint64_t last_sent_ = 0;
  uint64_t last_received_ = 0;
  std::deque<Outgoing> unacknowledged_;
};

}  // namespace ddprun
