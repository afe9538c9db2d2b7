// ExchangeFanout: what the workers of one node await goes up once for each key and not once for
// each rank; the answer is given to all who wait, and kept for those who ask later.
//
// A value of one generation of the agent's loop; no I/O. Invariants: a key is asked for at most
// once while its answer is out; a worker gets each answer as often as it has asked; at most
// kBytesMax of values are kept (a key beyond it is asked for again when somebody asks again).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

class ExchangeFanout {
 public:
  // A trainer publishes about 100 bytes a rank: room for 16,384 ranks with 4 KiB each.
  static constexpr size_t kBytesMax = size_t{64} << 20;
  enum class Answer {
    kAsk,   // the first: it goes up
    kWait,  // the answer is on its way
    kHere,  // *value has it
  };
  Answer Await(const v1::Await& await, v1::CoordinatorMessage* value);
  // The coordinator's Value or ExchangeRefused, once for each worker of this node that gets it; any
  // other message as it is.
  std::vector<v1::CoordinatorMessage> Spread(const v1::CoordinatorMessage& message);

 private:
  using Key = std::pair<std::string, std::string>;  // group, name
  std::map<Key, std::set<uint32_t>> waiting_;
  std::map<Key, std::string> values_;
  size_t bytes_ = 0;
};

}  // namespace ddprun::agent
