// LogFile: one worker's log on disk: appended to, rotated by size, with an index of times beside it
// (common/log_times.h).
//
// Threads: the keeper's alone. Writes wait for the disk at most. Invariants:
//  1. <LOG>.1, <LOG>.2, … and <LOG>, one after the other, are the bytes that were taken, each once
//  and in order; a rotation neither splits nor loses one, whenever the process or the disk gives up
//  in it.
//  2. <LOG> is missing for no longer than between two renames; what cannot be rotated goes on
//  growing.
//  3. Nobody else writes to it; one who makes it shorter gets what follows at its new end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/keeper/fd.h"

namespace ddprun::keeper {

// A file is cut at a line end where there is one among its last bytes, so many at most.
inline constexpr uint64_t kLogCutWindowBytes = 65536;

struct LogRotation {
  uint64_t file_bytes_max = 0;  // 0: never
  uint64_t files_kept = 0;      // besides the current one; 0: all
};

struct LogCut {
  size_t bytes = 0;  // of the piece that still belongs to this file
  bool rotate = false;
};
// How much of `bytes` goes into a file that has `position` bytes. Pure. REQUIRES: position <
// rotation.file_bytes_max.
LogCut CutLog(const LogRotation& rotation, uint64_t position, std::string_view bytes);

class LogFile {
 public:
  LogFile() = default;

  // 0, or the errno. Appends to what is there.
  int Open(std::string path, const LogRotation& rotation);

  // The bytes that could not be written: 0, or the rest from there on is lost; error() says why.
  size_t Append(std::string_view bytes, int64_t now_real_ns);

  // Moves at most `bytes_max` from a pipe without a copy through this process. As read(2): the
  // bytes moved, 0 at the end, −1 with EAGAIN when there is nothing now; −1 with EINVAL: not
  // possible here or now, take them with read(2) and Append.
  ssize_t MoveFrom(int pipe, size_t bytes_max, int64_t now_real_ns);

  int error() const { return error_; }
  // errno of a rotation that failed, once for each row of failures; else 0.
  int TakeRotationError();

 private:
  uint64_t SeekEnd();
  void NoteTime(uint64_t position, int64_t now_real_ns);
  void OpenTimes();
  bool Rotate();
  void FindNumbers();
  void Remove(uint64_t number);
  std::string Numbered(uint64_t number) const { return path_ + "." + std::to_string(number); }
  bool rotates() const { return regular_ && rotation_.file_bytes_max > 0; }

  std::string path_;
  LogRotation rotation_;
  Fd file_;
  bool regular_ = false;
  bool can_move_ = false;
  int error_ = 0;

  Fd times_;
  uint64_t times_count_ = 0;
  int64_t last_time_ns_ = 0;

  uint64_t next_number_ = 0;  // of the next rotated file; 0: the folder was not looked at yet
  uint64_t oldest_number_ = 1;
  int rotation_error_ = 0;
  bool rotation_failing_ = false;
};

}  // namespace ddprun::keeper
