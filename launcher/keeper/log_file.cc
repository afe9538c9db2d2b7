#include "launcher/keeper/log_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/log_times.h"

namespace ddprun::keeper {
namespace {

constexpr int kOpenFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;

uint64_t Window(const LogRotation& rotation) {
  return std::min(kLogCutWindowBytes, rotation.file_bytes_max / 2);
}

// N of "<base>.N"; 0: it is something else.
uint64_t NumberOf(std::string_view name, std::string_view base) {
  if (name.size() <= base.size() + 1 || name.substr(0, base.size()) != base ||
      name[base.size()] != '.') {
    return 0;
  }
  uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + base.size() + 1, end, number);
  return error == std::errc() && stop == end ? number : 0;
}

}  // namespace

LogCut CutLog(const LogRotation& rotation, uint64_t position, std::string_view bytes) {
  const uint64_t room = rotation.file_bytes_max - position;
  const uint64_t first_cut = rotation.file_bytes_max - Window(rotation);
  if (position + bytes.size() < first_cut) return {bytes.size(), false};
  const size_t line_end = bytes.substr(0, room).rfind('\n');
  if (line_end != std::string_view::npos && position + line_end + 1 >= first_cut) {
    return {line_end + 1, true};
  }
  if (bytes.size() >= room) return {static_cast<size_t>(room), true};
  return {bytes.size(), false};
}

int LogFile::Open(std::string path, const LogRotation& rotation) {
  path_ = std::move(path);
  rotation_ = rotation;
  // Not O_APPEND, which splice(2) refuses: SeekEnd does its work.
  file_.Reset(open(path_.c_str(), kOpenFlags, 0666));
  if (!file_.valid()) return errno;
  struct stat status {};
  regular_ = fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
  can_move_ = regular_;
  if (regular_) OpenTimes();
  return 0;
}

uint64_t LogFile::SeekEnd() {
  if (!regular_) return 0;
  const off_t end = lseek(file_.get(), 0, SEEK_END);
  return end > 0 ? static_cast<uint64_t>(end) : 0;
}

size_t LogFile::Append(std::string_view bytes, int64_t now_real_ns) {
  while (!bytes.empty()) {
    uint64_t position = SeekEnd();
    LogCut cut{bytes.size(), false};
    if (rotates() && position >= rotation_.file_bytes_max && Rotate()) position = 0;
    if (rotates() && position < rotation_.file_bytes_max) cut = CutLog(rotation_, position, bytes);
    NoteTime(position, now_real_ns);
    const ssize_t size = write(file_.get(), bytes.data(), cut.bytes);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      error_ = size < 0 ? errno : ENOSPC;
      return bytes.size();
    }
    bytes.remove_prefix(static_cast<size_t>(size));
    if (cut.rotate && static_cast<size_t>(size) == cut.bytes) Rotate();
  }
  return 0;
}

ssize_t LogFile::MoveFrom(int pipe, size_t bytes_max, int64_t now_real_ns) {
  const uint64_t position = can_move_ ? SeekEnd() : 0;
  uint64_t room = bytes_max;
  if (rotates()) {
    // Where to cut can only be seen in the bytes.
    const uint64_t first_cut = rotation_.file_bytes_max - Window(rotation_);
    room = position < first_cut ? std::min<uint64_t>(room, first_cut - position) : 0;
  }
  if (!can_move_ || room == 0) {
    errno = EINVAL;
    return -1;
  }
  const ssize_t size =
      splice(pipe, nullptr, file_.get(), nullptr, room, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (size > 0) NoteTime(position, now_real_ns);
  if (size >= 0 || errno == EAGAIN) return size;
  if (errno == EINVAL) can_move_ = false;  // a file system that cannot do it
  errno = EINVAL;                          // anything else is found again, and told, by Append
  return -1;
}

int LogFile::TakeRotationError() {
  return std::exchange(rotation_error_, 0);
}

void LogFile::OpenTimes() {
  times_count_ = 0;
  last_time_ns_ = 0;
  times_.Reset(open((path_ + kLogTimesSuffix).c_str(), kOpenFlags, 0666));
  if (!times_.valid()) return;
  const off_t end = lseek(times_.get(), 0, SEEK_END);
  const auto header_bytes = static_cast<off_t>(kLogTimesHeaderBytes);
  if (end >= header_bytes) {
    times_count_ = static_cast<uint64_t>(end - header_bytes) / sizeof(LogTime);
  } else if (pwrite(times_.get(), kLogTimesHeader, kLogTimesHeaderBytes, 0) != header_bytes) {
    times_.Reset();
  }
}

void LogFile::NoteTime(uint64_t position, int64_t now_real_ns) {
  if (!times_.valid()) return;
  const int64_t passed = now_real_ns - last_time_ns_;
  if (passed >= 0 && passed < LogTimesInterval(times_count_)) return;
  const LogTime record{now_real_ns, position};
  const off_t place = static_cast<off_t>(kLogTimesHeaderBytes + times_count_ * sizeof record);
  // On a full disk this moment is missing; its bytes then count to the record before.
  if (pwrite(times_.get(), &record, sizeof record, place) != sizeof record) return;
  ++times_count_;
  last_time_ns_ = now_real_ns;
}

bool LogFile::Rotate() {
  if (next_number_ == 0) FindNumbers();
  const std::string fresh_path = path_ + ".new";
  Fd fresh(open(fresh_path.c_str(), kOpenFlags | O_TRUNC, 0666));
  if (!fresh.valid() && (errno == ENOSPC || errno == EDQUOT) && rotation_.files_kept > 0 &&
      next_number_ - oldest_number_ >= rotation_.files_kept) {
    Remove(oldest_number_++);  // it would go anyway
    fresh.Reset(open(fresh_path.c_str(), kOpenFlags | O_TRUNC, 0666));
  }
  const std::string numbered = Numbered(next_number_);
  // The index first: between the two, the log lacks an index rather than having a wrong one.
  const std::string times = path_ + kLogTimesSuffix;
  if (fresh.valid()) rename(times.c_str(), (numbered + kLogTimesSuffix).c_str());
  const bool moved = fresh.valid() && rename(path_.c_str(), numbered.c_str()) == 0;
  if (!moved || rename(fresh_path.c_str(), path_.c_str()) != 0) {
    if (!rotation_failing_) rotation_error_ = errno;
    rotation_failing_ = true;
    if (moved) rename(numbered.c_str(), path_.c_str());
    return false;
  }
  rotation_failing_ = false;
  file_ = std::move(fresh);
  OpenTimes();
  ++next_number_;
  while (rotation_.files_kept > 0 && next_number_ - oldest_number_ > rotation_.files_kept) {
    Remove(oldest_number_++);
  }
  return true;
}

void LogFile::Remove(uint64_t number) {
  unlink(Numbered(number).c_str());
  unlink((Numbered(number) + kLogTimesSuffix).c_str());
}

void LogFile::FindNumbers() {
  next_number_ = 1;
  oldest_number_ = UINT64_MAX;
  const size_t slash = path_.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path_.substr(0, std::max<size_t>(slash, 1));
  const std::string base = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  if (DIR* dir = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(dir)) {
      const uint64_t number = NumberOf(entry->d_name, base);
      if (number == 0) continue;
      next_number_ = std::max(next_number_, number + 1);
      oldest_number_ = std::min(oldest_number_, number);
    }
    closedir(dir);
  }
  oldest_number_ = std::min(oldest_number_, next_number_);
}

}  // namespace ddprun::keeper
