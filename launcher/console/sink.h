// Sink: what waits to be written to one file descriptor. The console's mutex guards it; only
// WriteSome is for the writing thread alone, runs without the mutex, and touches nothing shared.
//
// Invariant: waiting() stays under the limit for workers' output and a reserve for ddprun's own
// lines. When workers' output has reached the limit, it is dropped and counted until half of the
// queue is free, so that gaps are few and large and not one after every line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

class Sink {
 public:
  Sink(int fd, size_t limit);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  size_t waiting() const { return queue_.size() + in_flight_; }
  // Bytes that have been taken in so far, and those of them that are written (or lost because the
  // reader has gone).
  uint64_t appended() const { return appended_; }
  uint64_t done() const { return appended_ - waiting(); }

  void AppendOutput(std::string_view prefix, std::string_view line);
  // One that has its prefix already.
  void AppendLine(std::string_view line) { AppendParts("", "", "", line); }
  void AppendOwn(std::string_view text);
  // Bytes that somebody else has dropped before they came here.
  void CountDropped(size_t bytes) {
    dropped_ += bytes;
    dropped_total_ += bytes;
  }
  uint64_t dropped_total() const { return dropped_total_; }
  // Queues the line that says how much was dropped, if anything was.
  void ReportDrops();

  // Hands what is queued to the writing thread, behind `first`. REQUIRES: !HasReady().
  void Refill(std::string_view first);
  // Accounts for what WriteSome has done.
  void Account();
  bool queue_empty() const { return queue_.empty(); }

  // The writing thread's own.
  bool HasReady() const { return offset_ < writing_.size(); }
  // One write(2); an error other than "try again" ends this sink: all that comes is thrown away.
  void WriteSome();

 private:
  void AppendParts(std::string_view before, std::string_view prefix, std::string_view after,
                   std::string_view line);

  const int fd_;
  const size_t limit_;
  bool terminal_ = false;
  size_t chunk_bytes_;

  std::string queue_;
  size_t in_flight_ = 0;  // unwritten bytes of `writing_`, as last accounted
  uint64_t appended_ = 0;
  size_t dropped_ = 0;  // and not reported yet
  uint64_t dropped_total_ = 0;
  bool dropping_ = false;

  std::string writing_;
  size_t offset_ = 0;
  bool closed_ = false;
};

// Whether both are one file, so that the order of lines between them matters.
bool SameFile(int a, int b);

}  // namespace ddprun
