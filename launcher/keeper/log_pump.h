// LogPump: one worker's output, from its pipe to its log file byte for byte, with a copy for the
// console.
//
// Threads: the keeper's alone. The pipe is non-blocking; the file is an ordinary one, where a write
// waits for the disk at most. Invariants:
//  1. Every byte read from the pipe is in the file, in order, or counted in bytes_lost().
//  2. A file that cannot be written never stops the reading: the worker is not blocked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "launcher/keeper/fd.h"

namespace ddprun::keeper {

inline constexpr size_t kLogChunkBytes = 65536;

class LogPump {
 public:
  enum class Outcome {
    kData,   // *chunk was copied to the file; there may be more
    kEmpty,  // nothing is there now
    kEnd,    // no process holds the pipe any more
  };

  LogPump() = default;
  LogPump(Fd pipe, Fd file) : pipe_(static_cast<Fd&&>(pipe)), file_(static_cast<Fd&&>(file)) {}

  // Copies at most one chunk; *chunk stays valid until the next call of any pump.
  Outcome PumpOnce(std::string_view* chunk);
  // Bytes that lie in the pipe now.
  size_t BytesWaiting() const;

  Fd* pipe() { return &pipe_; }
  bool open() const { return pipe_.valid(); }

  uint64_t bytes_lost() const { return bytes_lost_; }
  int last_error() const { return last_error_; }  // errno of the last write that failed
  // True once after each change from good to bad: time to tell about it.
  bool TakeNewTrouble();

 private:
  void Write(std::string_view bytes);

  Fd pipe_;
  Fd file_;
  uint64_t bytes_lost_ = 0;
  int last_error_ = 0;
  bool in_trouble_ = false;
  bool new_trouble_ = false;
};

}  // namespace ddprun::keeper
