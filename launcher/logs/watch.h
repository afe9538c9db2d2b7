// Watch: sleeps until something changes in some folders (inotify). Where the kernel cannot tell,
// since others write there (a network file system) or its watches are used up, it wakes up once a
// second instead.
//
// Threads: one.
#pragma once

#include <string>

namespace ddprun::logs {

class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Changes from now on are told. A folder may be given again.
  void Add(const std::string& folder);
  void Wait();
  // Only by looking, since no kernel of this machine sees who writes.
  bool remote() const { return remote_; }

 private:
  int fd_ = -1;
  bool remote_ = false;
  bool blind_ = false;
};

}  // namespace ddprun::logs
