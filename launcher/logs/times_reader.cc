#include "launcher/logs/times_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace ddprun::logs {
namespace {

constexpr size_t kBlockRecords = 512;

}  // namespace

TimesReader::TimesReader(const std::string& log_path) {
  fd_ = open((log_path + kLogTimesSuffix).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  char header[kLogTimesHeaderBytes];
  if (fd_ >= 0 && (pread(fd_, header, sizeof header, 0) != sizeof header ||
                   memcmp(header, kLogTimesHeader, sizeof header) != 0)) {
    close(std::exchange(fd_, -1));
  }
}

TimesReader::~TimesReader() {
  if (fd_ >= 0) close(fd_);
}

TimesReader& TimesReader::operator=(TimesReader&& other) noexcept {
  std::swap(fd_, other.fd_);
  read_ = other.read_;
  block_ = std::move(other.block_);
  at_ = other.at_;
  exhausted_ = other.exhausted_;
  current_ = other.current_;
  return *this;
}

bool TimesReader::Read(uint64_t number, std::vector<LogTime>* records) const {
  records->resize(kBlockRecords);
  const auto place = static_cast<off_t>(kLogTimesHeaderBytes + number * sizeof(LogTime));
  const ssize_t bytes =
      fd_ < 0 ? 0 : pread(fd_, records->data(), records->size() * sizeof(LogTime), place);
  records->resize(bytes > 0 ? static_cast<size_t>(bytes) / sizeof(LogTime) : 0);
  return !records->empty();
}

const LogTime* TimesReader::Next() {
  if (at_ == block_.size()) {
    if (exhausted_) return nullptr;
    at_ = 0;
    if (!Read(read_, &block_)) {
      exhausted_ = true;
      return nullptr;
    }
    read_ += block_.size();
  }
  return &block_[at_];
}

int64_t TimesReader::TimeOf(uint64_t offset) {
  for (const LogTime* next = Next(); next != nullptr && next->offset <= offset; next = Next()) {
    current_ = *next;
    ++at_;
  }
  return current_.time_ns;
}

TimesReader::Found TimesReader::FirstSince(int64_t time_ns) const {
  Found found;
  std::vector<LogTime> block;
  for (uint64_t number = 0; Read(number, &block); number += block.size()) {
    found.any = true;
    for (const LogTime& record : block) {
      if (record.time_ns < time_ns) continue;
      found.record = record;
      return found;
    }
  }
  return found;
}

}  // namespace ddprun::logs
