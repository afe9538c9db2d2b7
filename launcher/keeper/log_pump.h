// LogPump: one worker's output, from its pipe to its log file byte for byte, with a copy for the
// console where somebody looks at it.
//
// Threads: the keeper's alone. The pipe is non-blocking; the file is an ordinary one, where a write
// waits for the disk at most. Invariants:
//  1. Every byte taken from the pipe is in the file, in order, or counted in bytes_lost().
//  2. A file that cannot be written never stops the reading: the worker is not blocked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "launcher/keeper/fd.h"
#include "launcher/keeper/log_file.h"

namespace ddprun::keeper {

inline constexpr size_t kLogChunkBytes = 65536;

class LogPump {
 public:
  enum class Outcome {
    kData,   // some bytes are in the file; there may be more
    kEmpty,  // nothing is there now
    kEnd,    // no process holds the pipe any more
  };
  // Changes of the file's state, each to be told once.
  enum class News { kNone, kCannotWrite, kWritesAgain, kCannotRotate };

  LogPump() = default;
  LogPump(Fd pipe, LogFile file)
      : pipe_(static_cast<Fd&&>(pipe)), file_(static_cast<LogFile&&>(file)) {}

  // Moves at most `bytes_max` to the file; *size says how many. With `want_bytes`, at most one
  // chunk, and *chunk shows it until the next call of any pump; without, *chunk is empty and the
  // kernel moves pages from pipe to file where it can.
  Outcome PumpOnce(size_t bytes_max, bool want_bytes, std::string_view* chunk, size_t* size);
  // Bytes that lie in the pipe now.
  size_t BytesWaiting() const;

  Fd* pipe() { return &pipe_; }
  bool open() const { return pipe_.valid(); }

  uint64_t bytes_lost() const { return bytes_lost_; }
  int last_error() const { return last_error_; }  // errno that belongs to the news
  News TakeNews();

 private:
  Outcome Copy(size_t bytes_max, std::string_view* chunk);

  Fd pipe_;
  LogFile file_;
  uint64_t bytes_lost_ = 0;
  int last_error_ = 0;
  bool in_trouble_ = false;
  News news_ = News::kNone;
};

}  // namespace ddprun::keeper
