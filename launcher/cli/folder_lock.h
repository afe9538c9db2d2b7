// The lock of a run folder (`.lock`), which a ddprun that runs a job there holds all the time.
// Threads: one.
#pragma once

#include <string>

namespace ddprun::cli {

// Takes the lock for as long as it lives.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool held() const { return held_; }
  // Somebody else has it. Neither held nor busy: the folder has no lock.
  bool busy() const { return busy_; }

 private:
  int fd_ = -1;
  bool held_ = false;
  bool busy_ = false;
};

}  // namespace ddprun::cli
