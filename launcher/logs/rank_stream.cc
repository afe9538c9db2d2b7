#include "launcher/logs/rank_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ddprun::logs {

RankStream::RankStream(RankFiles files, Place begin) : files_(std::move(files)) {
  if (begin.number != 0) {
    passed_ = begin.number - 1;
    Take(OpenFile(begin.number), begin);
  } else {
    // The list may be older than a rotation.
    OpenAfter(files_.numbers.empty() ? 0 : files_.numbers.back(), begin.offset);
  }
}

RankStream::~RankStream() {
  if (fd_ >= 0) close(fd_);
}

int RankStream::OpenFile(uint64_t number) const {
  return open(PathOf(files_, number).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

std::vector<uint64_t> RankStream::NumbersNow() const {
  const std::string folder = files_.path.substr(0, files_.path.rfind('/'));
  for (auto& [rank, files] : ListRanks(folder)) {
    if (files.path == files_.path) return files.numbers;
  }
  return {};
}

bool RankStream::Take(int fd, Place place) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  number_ = place.number;
  offset_ = place.offset;
  // What waits belongs to files before this one.
  buffer_.erase(0, front_);
  searched_ -= std::min(searched_, front_);
  front_ = 0;
  carried_ = buffer_.size();
  times_ = TimesReader(PathOf(files_, number_));
  return fd_ >= 0;
}

bool RankStream::OpenAfter(uint64_t passed, uint64_t offset) {
  // The one that grows is opened before the folder is read, so that a rotation in between shows
  // there.
  const int current = OpenFile(0);
  for (uint64_t number : NumbersNow()) {
    if (number <= passed) continue;
    const int rotated = OpenFile(number);
    if (rotated < 0) continue;  // the oldest are removed
    if (current >= 0) close(current);
    passed_ = number - 1;
    return Take(rotated, {number, offset});
  }
  passed_ = passed;
  return current >= 0 && Take(current, {0, offset});  // else between two renames, or not made yet
}

uint64_t RankStream::NumberNow() const {
  struct stat own = {}, other = {};
  if (fstat(fd_, &own) != 0) return 0;
  for (uint64_t number : NumbersNow()) {
    if (stat(PathOf(files_, number).c_str(), &other) == 0 && own.st_ino == other.st_ino) {
      return number;
    }
  }
  return 0;
}

bool RankStream::NextFile() {
  if (fd_ < 0 || number_ != 0) return OpenAfter(std::max(passed_, number_), 0);
  struct stat own = {}, current = {};
  const bool there = stat(files_.path.c_str(), &current) == 0;
  if (!there || (fstat(fd_, &own) == 0 && own.st_ino == current.st_ino)) return false;
  // It was rotated: what came before that and after our last look is still to be read. Numbers
  // follow each other.
  number_ = std::max(NumberNow(), passed_ + 1);
  return true;
}

bool RankStream::Fill() {
  if (front_ > 0) {
    buffer_.erase(0, front_);
    searched_ -= std::min(searched_, front_);
    carried_ -= std::min(carried_, front_);
    front_ = 0;
  }
  const size_t before = buffer_.size();
  const size_t room = kPieceBytesMax + 1 - before;
  do {
    if (fd_ < 0) continue;
    buffer_.resize(before + room);
    ssize_t size = 0;
    do {
      size = pread(fd_, buffer_.data() + before, room, static_cast<off_t>(offset_));
    } while (size < 0 && errno == EINTR);
    buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(size, 0)));
    if (size > 0) {
      offset_ += static_cast<uint64_t>(size);
      times_.LookAgain();
      return true;
    }
  } while (NextFile());
  return false;
}

size_t RankStream::LineEnd(bool at_end) {
  const std::string_view bytes = buffer_;
  const size_t from = std::max(front_, searched_);
  const size_t feed = bytes.find('\n', from);
  const size_t carriage = bytes.substr(0, feed).find('\r', from);
  if (carriage != std::string_view::npos) {
    if (carriage + 1 < bytes.size() || at_end) {
      return carriage + (carriage + 1 == feed ? 2 : 1);
    }
    searched_ = carriage;  // \n may follow
    return 0;
  }
  if (feed != std::string_view::npos) return feed + 1;
  searched_ = bytes.size();
  return 0;
}

const Piece* RankStream::Peek(bool at_end) {
  if (peeked_) return &piece_;
  bool more = true;
  size_t end = LineEnd(false);
  while (end == 0 && more && buffer_.size() - front_ <= kPieceBytesMax) {
    more = Fill();
    end = LineEnd(at_end && !more);
  }
  const size_t waiting = buffer_.size() - front_;
  const bool whole = end != 0;
  if (!whole && waiting > kPieceBytesMax) end = front_ + kPieceBytesMax;
  if (!whole && end == 0 && at_end) end = buffer_.size();
  if (end <= front_) return nullptr;
  if (!in_line_) {
    const uint64_t front_offset =
        front_ < carried_ ? 0 : offset_ - static_cast<uint64_t>(buffer_.size() - front_);
    last_time_ = std::max(last_time_, times_.TimeOf(front_offset));
  }
  piece_ = {last_time_, std::string_view(buffer_).substr(front_, end - front_), whole};
  peeked_ = true;
  return &piece_;
}

void RankStream::Pop() {
  front_ += piece_.bytes.size();
  in_line_ = !piece_.ends_line;
  peeked_ = false;
}

}  // namespace ddprun::logs
