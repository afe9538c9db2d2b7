// The virtual clock's queue: what happens next, by time and then by order of scheduling.
//
// Events are small values; messages lie in pools and are named by their slot, so that the heap
// moves 64 bytes and nothing is allocated once a job is under way. Single-threaded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace ddprun::sim {

enum class What : uint8_t {
  // for the coordinator's process
  kUp,  // an agent's message arrived; stream, message
  kDetached,
  kCoordinatorTime,
  kResumeChosen,
  kCheckpointStored,
  // for an agent's process
  kAgentStarts,
  kConnects,
  kDown,  // a coordinator's message arrived; stream, message
  kBroken,
  kAgentTime,
  kLeaveAgain,
  kKeeperSaid,
  kKeeperGone,
  // for a keeper and its workers
  kKeeperStarts,
  kKeeperTime,
  kStopOrder,
  kLease,
  kTell,
  kAgentGone,
  kWorkerBoots,
  kWorkerReady,
  kStepDone,
  kShardDone,
  kPeerLost,
  kExamined,  // a node has looked where its workers stand
  kWorkerStalls,
  kWorkerEnds,
  // for the world itself
  kStreamBreaks,
  kCollectiveTimeout,
  kNodeReturns,
  kCoordinatorReturns,
};

struct SimEvent {
  int64_t when_ns = 0;
  uint64_t order = 0;
  What what = What::kUp;
  uint32_t node = 0;
  uint32_t id = 0;  // stream, agent or keeper that it is for; dropped when that one is gone
  uint32_t rank = 0;
  uint32_t slot = 0;    // message in its pool
  uint64_t number = 0;  // step, generation, time …, by kind
};

class EventQueue {
 public:
  void Push(SimEvent event) {
    event.order = ++last_order_;
    PushAgain(event);
  }
  // Keeps the event's place among those of the same time.
  void PushAgain(const SimEvent& event) {
    heap_.push_back(event);
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  SimEvent Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    SimEvent event = heap_.back();
    heap_.pop_back();
    return event;
  }
  bool empty() const { return heap_.empty(); }
  uint64_t NewOrder() { return ++last_order_; }

 private:
  static bool Later(const SimEvent& a, const SimEvent& b) {
    return a.when_ns != b.when_ns ? a.when_ns > b.when_ns : a.order > b.order;
  }
  std::vector<SimEvent> heap_;
  uint64_t last_order_ = 0;
};

// Messages on their way. Slot 0 is never given out.
template <typename T>
class Pool {
 public:
  uint32_t Put(T value) {
    if (free_.empty()) {
      items_.push_back(std::move(value));
      return static_cast<uint32_t>(items_.size() - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    items_[slot] = std::move(value);
    return slot;
  }
  T Take(uint32_t slot) {
    free_.push_back(slot);
    return std::move(items_[slot]);
  }
  void Drop(uint32_t slot) { free_.push_back(slot); }
  const T& Look(uint32_t slot) const { return items_[slot]; }

 private:
  std::deque<T> items_ = std::deque<T>(1);
  std::vector<uint32_t> free_;
};

}  // namespace ddprun::sim
