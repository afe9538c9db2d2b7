// Budget: how much one sender may have on its way to a loop that handles it. What is handled is
// given back by dropping the ticket; the sender waits meanwhile, and so does the network behind it.
//
// A single take that is larger than the budget passes alone. Threads: any. Shared, since a ticket
// may outlive the stream it came from.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

namespace ddprun::net {

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  using Ticket = std::shared_ptr<void>;

  explicit Budget(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Waits until there is room. Null: closed.
  Ticket Take(size_t bytes) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || used_ == 0 || used_ + bytes <= bytes_max_; });
      if (closed_) return nullptr;
      used_ += bytes;
    }
    return Ticket(static_cast<void*>(this), [self = shared_from_this(), bytes](void*) {
      {
        std::lock_guard lock(self->mutex_);
        self->used_ -= bytes;
      }
      self->changed_.notify_one();
    });
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  const size_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t used_ = 0;
  bool closed_ = false;
};

}  // namespace ddprun::net
