// RankStream: one rank's log as a Source: through its rotated files, and on as the current one
// grows and is rotated.
//
// Threads: one. Bounded memory: a line longer than kPieceBytesMax comes in parts. A line ends at
// \n, or at \r where no \n follows (so each update of a progress bar is one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/logs/merge.h"
#include "launcher/logs/rank_files.h"
#include "launcher/logs/times_reader.h"

namespace ddprun::logs {

inline constexpr size_t kPieceBytesMax = 256u << 10;

class RankStream : public Source {
 public:
  RankStream(RankFiles files, Place begin);
  ~RankStream() override;
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  const Piece* Peek(bool at_end) override;
  void Pop() override;

 private:
  int OpenFile(uint64_t number) const;  // −1: it is not there
  std::vector<uint64_t> NumbersNow() const;
  // Reads `fd` from now on; false where it is −1.
  bool Take(int fd, Place place);
  // The first file behind the rotated one `passed`, from `offset` on; false: there is none now.
  bool OpenAfter(uint64_t passed, uint64_t offset);
  // More bytes into the buffer; false: there are none now.
  bool Fill();
  // To the file after this one, when this one is a rotated file that is read to its end; false: it
  // is the one that grows.
  bool NextFile();
  // The number under which the open file was rotated; 0: it is gone.
  uint64_t NumberNow() const;
  // Where the line at the buffer's front ends (behind its \n or \r); 0: not known yet.
  size_t LineEnd(bool at_end);

  RankFiles files_;
  uint64_t number_ = 0;  // of the open file; 0: it is the one that grows
  uint64_t passed_ = 0;  // number of the newest file that is read to its end
  int fd_ = -1;
  uint64_t offset_ = 0;  // of the next byte to read
  TimesReader times_;

  std::string buffer_;
  size_t front_ = 0;     // of the next piece
  size_t searched_ = 0;  // no line end before it
  size_t carried_ = 0;   // buffer_[0, carried_) came from files before this one
  int64_t last_time_ = 0;
  bool in_line_ = false;  // the piece before did not end its line
  bool peeked_ = false;
  Piece piece_;
};

}  // namespace ddprun::logs
