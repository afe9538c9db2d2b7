// TimesReader: walks through the index of one log file (common/log_times.h), forwards.
//
// Threads: one. A file that is missing, or is no index, or goes wrong in the middle, counts as one
// that ends there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/log_times.h"

namespace ddprun::logs {

class TimesReader {
 public:
  TimesReader() = default;
  explicit TimesReader(const std::string& log_path);
  ~TimesReader();
  TimesReader(TimesReader&& other) noexcept { *this = static_cast<TimesReader&&>(other); }
  TimesReader& operator=(TimesReader&& other) noexcept;
  TimesReader(const TimesReader&) = delete;
  TimesReader& operator=(const TimesReader&) = delete;

  // When the byte at `offset` was written; 0: not known. REQUIRES: offsets do not go back.
  int64_t TimeOf(uint64_t offset);
  // Records that were added meanwhile count from now on.
  void LookAgain() { exhausted_ = false; }

  // The first record that is not earlier, and whether there is any record at all. Does not move
  // TimeOf.
  struct Found {
    std::optional<LogTime> record;
    bool any = false;
  };
  Found FirstSince(int64_t time_ns) const;

 private:
  const LogTime* Next();
  // Fills *records from the record with this number on; false: there is none.
  bool Read(uint64_t number, std::vector<LogTime>* records) const;

  int fd_ = -1;
  uint64_t read_ = 0;  // records taken from the file
  std::vector<LogTime> block_;
  size_t at_ = 0;  // next one in block_
  bool exhausted_ = false;
  LogTime current_;
};

}  // namespace ddprun::logs
