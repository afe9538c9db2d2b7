// Mailbox: the queue between threads that post and the one loop thread that owns the state.
//
// Post may be called from any thread; Take from the loop only. After Close, Post drops and Take
// returns nullopt when empty.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun {

template <typename T>
class Mailbox {
 public:
  void Post(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  // In order, and with one wake-up.
  void PostAll(std::vector<T> items) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      for (T& item : items) items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  // Waits for an item until the deadline (none: for ever). nullopt: the deadline passed, or closed
  // and empty.
  std::optional<T> Take(std::optional<std::chrono::steady_clock::time_point> deadline) {
    std::unique_lock lock(mutex_);
    auto something = [this] { return closed_ || !items_.empty(); };
    if (!deadline) {
      changed_.wait(lock, something);
    } else {
      changed_.wait_until(lock, *deadline, something);
    }
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // An item that is there already.
  std::optional<T> TryTake() {
    std::lock_guard lock(mutex_);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }
  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace ddprun
