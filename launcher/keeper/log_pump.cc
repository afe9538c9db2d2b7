#include "launcher/keeper/log_pump.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddprun::keeper {

LogPump::Outcome LogPump::PumpOnce(std::string_view* chunk) {
  static char buffer[kLogChunkBytes];  // one thread, one chunk at a time
  if (!open()) return Outcome::kEnd;
  const ssize_t size = read(pipe_.get(), buffer, sizeof buffer);
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Outcome::kEmpty : Outcome::kEnd;
  if (size == 0) return Outcome::kEnd;
  *chunk = std::string_view(buffer, static_cast<size_t>(size));
  Write(*chunk);
  return Outcome::kData;
}

size_t LogPump::BytesWaiting() const {
  int bytes = 0;
  if (!open() || ioctl(pipe_.get(), FIONREAD, &bytes) != 0) return 0;
  return static_cast<size_t>(bytes);
}

bool LogPump::TakeNewTrouble() {
  return std::exchange(new_trouble_, false);
}

void LogPump::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(file_.get(), bytes.data(), bytes.size());
    if (size > 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    last_error_ = size < 0 ? errno : ENOSPC;
    bytes_lost_ += bytes.size();
    if (!in_trouble_) new_trouble_ = true;
    in_trouble_ = true;
    return;
  }
  in_trouble_ = false;
}

}  // namespace ddprun::keeper
