#include "launcher/console/sink.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ddprun {
namespace {

// A pipe that poll calls writable takes PIPE_BUF bytes without blocking.
constexpr size_t kPipeChunkBytes = 4096;
constexpr size_t kFileChunkBytes = 1u << 18;
// ddprun's own lines are few; these many still get in when workers have filled the queue.
constexpr size_t kReserveBytes = 256u << 10;

}  // namespace

Sink::Sink(int fd, size_t limit) : fd_(fd), limit_(limit), terminal_(isatty(fd) == 1) {
  struct stat info = {};
  const bool file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  chunk_bytes_ = file ? kFileChunkBytes : kPipeChunkBytes;
}

void Sink::AppendOutput(std::string_view prefix, std::string_view line) {
  AppendParts("[", prefix, "] ", line);
}

void Sink::AppendParts(std::string_view before, std::string_view prefix, std::string_view after,
                       std::string_view line) {
  const size_t bytes = before.size() + prefix.size() + after.size() + line.size() + 1;
  if (dropping_ && waiting() <= limit_ / 2) dropping_ = false;
  if (dropping_ || waiting() + bytes > limit_) {
    dropping_ = true;
    CountDropped(line.size() + 1);
    return;
  }
  ReportDrops();
  queue_.append(before).append(prefix).append(after).append(line).append("\n");
  appended_ += bytes;
}

void Sink::AppendOwn(std::string_view text) {
  if (waiting() + text.size() > limit_ + kReserveBytes) return;
  queue_.append(text);
  appended_ += text.size();
}

void Sink::ReportDrops() {
  if (dropped_ == 0) return;
  AppendOwn("[ddprun] " + std::to_string(dropped_) +
            " bytes of output are not shown here, because it is read too slowly; the log files "
            "have them\n");
  dropped_ = 0;
}

void Sink::Refill(std::string_view first) {
  writing_.assign(first);
  appended_ += first.size();
  if (first.empty()) {
    writing_.swap(queue_);
  } else {
    writing_.append(queue_);
  }
  queue_.clear();
  offset_ = 0;
  in_flight_ = writing_.size();
}

void Sink::Account() {
  in_flight_ = writing_.size() - offset_;
}

void Sink::WriteSome() {
  if (closed_) {
    offset_ = writing_.size();
    return;
  }
  const size_t bytes = std::min(chunk_bytes_, writing_.size() - offset_);
  const ssize_t written = write(fd_, writing_.data() + offset_, bytes);
  if (written >= 0) {
    offset_ += static_cast<size_t>(written);
  } else if (errno != EINTR && errno != EAGAIN) {
    closed_ = true;
    offset_ = writing_.size();
  }
}

bool SameFile(int a, int b) {
  struct stat one = {}, other = {};
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace ddprun
