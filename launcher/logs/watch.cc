#include "launcher/logs/watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace ddprun::logs {
namespace {

constexpr int kLookMilliseconds = 1000;

// File systems on which another machine may write: NFS, SMB (three kinds), Lustre, Ceph, GPFS, AFS
// (two), 9P, FUSE, BeeGFS.
constexpr uint32_t kRemoteTypes[] = {0x6969,     0x517B,     0xFE534D42, 0xFF534D42,
                                     0x0BD00BD0, 0x00C36400, 0x47504653, 0x5346414F,
                                     0x6B414653, 0x01021997, 0x65735546, 0x19830326};

bool IsRemote(const std::string& folder) {
  struct statfs info = {};
  if (statfs(folder.c_str(), &info) != 0) return false;
  const auto type = static_cast<uint32_t>(info.f_type);
  return std::find(std::begin(kRemoteTypes), std::end(kRemoteTypes), type) !=
         std::end(kRemoteTypes);
}

}  // namespace

Watch::Watch() : fd_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)), blind_(fd_ < 0) {}

Watch::~Watch() {
  if (fd_ >= 0) close(fd_);
}

void Watch::Add(const std::string& folder) {
  remote_ = remote_ || IsRemote(folder);
  // IN_CLOSE_WRITE also tells that the process is gone that held a file open.
  constexpr uint32_t kWhat = IN_MODIFY | IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE;
  if (fd_ >= 0 && inotify_add_watch(fd_, folder.c_str(), kWhat) < 0 && errno != ENOENT) {
    blind_ = true;
  }
}

void Watch::Wait() {
  pollfd polled = {fd_, POLLIN, 0};
  const int timeout = remote_ || blind_ ? kLookMilliseconds : -1;
  while (poll(&polled, 1, timeout) < 0 && errno == EINTR) {
  }
  alignas(inotify_event) char events[16384];
  while (fd_ >= 0 && read(fd_, events, sizeof events) > 0) {  // whatever it was, all is looked at
  }
}

}  // namespace ddprun::logs
