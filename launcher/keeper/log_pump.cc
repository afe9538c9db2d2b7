#include "launcher/keeper/log_pump.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/keeper/clock.h"

namespace ddprun::keeper {

LogPump::Outcome LogPump::PumpOnce(size_t bytes_max, bool want_bytes, std::string_view* chunk,
                                   size_t* size) {
  *chunk = {};
  *size = 0;
  if (!open()) return Outcome::kEnd;
  // While the disk is full, what comes has to be taken out of the pipe to be dropped.
  if (!want_bytes && !in_trouble_) {
    const ssize_t moved = file_.MoveFrom(pipe_.get(), bytes_max, RealNs());
    if (moved > 0) *size = static_cast<size_t>(moved);
    if (moved > 0) return Outcome::kData;
    if (moved == 0) return Outcome::kEnd;
    if (errno == EAGAIN || errno == EINTR) return Outcome::kEmpty;
  }
  const Outcome outcome = Copy(bytes_max, chunk);
  *size = chunk->size();
  if (!want_bytes) *chunk = {};
  return outcome;
}

LogPump::Outcome LogPump::Copy(size_t bytes_max, std::string_view* chunk) {
  static char buffer[kLogChunkBytes];  // one thread, one chunk at a time
  const ssize_t size = read(pipe_.get(), buffer, std::min(sizeof buffer, bytes_max));
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Outcome::kEmpty : Outcome::kEnd;
  if (size == 0) return Outcome::kEnd;
  *chunk = std::string_view(buffer, static_cast<size_t>(size));
  const size_t lost = file_.Append(*chunk, RealNs());
  bytes_lost_ += lost;
  if (const int error = file_.TakeRotationError(); error != 0) {
    last_error_ = error;
    news_ = News::kCannotRotate;
  }
  if (lost > 0) last_error_ = file_.error();
  if (lost > 0 && !in_trouble_) news_ = News::kCannotWrite;
  if (lost == 0 && in_trouble_) news_ = News::kWritesAgain;
  in_trouble_ = lost > 0;
  return Outcome::kData;
}

size_t LogPump::BytesWaiting() const {
  int bytes = 0;
  if (!open() || ioctl(pipe_.get(), FIONREAD, &bytes) != 0) return 0;
  return static_cast<size_t>(bytes);
}

LogPump::News LogPump::TakeNews() {
  return std::exchange(news_, News::kNone);
}

}  // namespace ddprun::keeper
