#include "launcher/coordinator/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr off_t kReserveBytes = 262'144;  // result.json with 100 failures, and some 1,000 events
constexpr const char* kReserveName = ".reserve";

bool IsFull(int error) {
  return error == ENOSPC || error == EDQUOT;
}

// Returns the bytes that were written; fewer than all: `error` says why.
size_t Append(int fd, const std::string& text, int* error) {
  *error = 0;
  const ssize_t written = write(fd, text.data(), text.size());
  if (written < 0) *error = errno;
  if (written >= 0 && static_cast<size_t>(written) < text.size()) *error = ENOSPC;
  return written > 0 ? static_cast<size_t>(written) : 0;
}

absl::StatusOr<int> TakeLock(const std::string& path) {
  const std::string lock = JoinPath(path, ".lock");
  int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", lock));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error != EWOULDBLOCK) return absl::ErrnoToStatus(error, absl::StrCat("cannot lock ", lock));
  return absl::FailedPreconditionError(
      absl::StrCat("run folder ", path,
                   " is in use by a running ddprun: choose another --run-dir, "
                   "or stop that job first"));
}

absl::StatusOr<int> OpenEvents(const std::string& path) {
  const std::string name = JoinPath(path, "events.jsonl");
  int fd = open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", name));
  char last = '\n';
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n') {
    // The launcher died inside a write: end the torn line, so that the next event stands alone.
    if (write(fd, "\n", 1) != 1) {
      const int error = errno;
      close(fd);
      return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", name));
    }
  }
  return fd;
}

// A damaged file is read as far as it makes sense.
constexpr uint64_t kGenerationMax = 1'000'000'000;
constexpr double kSecondsLostMax = 1e10;

uint64_t GenerationOf(const Json& event) {
  const Json generation = event.value("generation", Json());
  if (!generation.is_number_unsigned() || generation > kGenerationMax) return 0;
  return generation.get<uint64_t>();
}

std::string Text(const Json& event, const char* key, const std::string& missing) {
  const Json text = event.value(key, Json());
  return text.is_string() ? text.get<std::string>() : missing;
}

}  // namespace

RunFolder::RunFolder(std::string path, int lock_fd, int events_fd)
    : path_(std::move(path)), lock_fd_(lock_fd), events_fd_(events_fd) {}

RunFolder::~RunFolder() {
  close(events_fd_);
  close(lock_fd_);
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Open(const std::string& path) {
  absl::Status made = PosixFileSystem().MakeDirectories(path);
  if (!made.ok()) return made;
  absl::StatusOr<int> lock = TakeLock(path);
  if (!lock.ok()) return lock.status();
  absl::StatusOr<int> events = OpenEvents(path);
  if (!events.ok()) {
    close(*lock);
    return events.status();
  }
  return std::unique_ptr<RunFolder>(new RunFolder(path, *lock, *events));
}

Past RunFolder::ReadPast() const {
  Past past;
  std::ifstream in(JoinPath(path_, "events.jsonl"));
  std::string line;
  while (std::getline(in, line)) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) continue;
    past.generation = std::max(past.generation, GenerationOf(event));
    const std::string name = Text(event, "event", "");
    if (name == "restart_scheduled" && event.value("free", Json()) != true) ++past.restarts;
    if (name == "generation_started") past.may_run = true;
    if (name == "generation_ended") past.may_run = false;
    const Json lost = event.value("time_lost_s", Json());
    if (!lost.is_number() || lost < 0 || lost > kSecondsLostMax) continue;
    past.time_lost_seconds += lost.get<double>();
    past.lost_by_cause[Text(event, "lost_to", CauseName(Cause::kNone))] += lost.get<double>();
  }
  return past;
}

absl::Status RunFolder::WriteJob(const Json& job) {
  return ReplaceFile(PosixFileSystem(), JoinPath(path_, "job.json"),
                     job.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string RunFolder::EventLine(const Json& event, double t) {
  const std::string fields = event.dump(-1, ' ', false, Json::error_handler_t::replace);
  return absl::StrCat("{\"t\":", Json(t).dump(), event.empty() ? "" : ",", fields.substr(1));
}

absl::Status RunFolder::AppendEvents(const std::vector<std::string>& lines) {
  std::string text = torn_ ? "\n" : "";
  for (const std::string& line : lines) text.append(line).push_back('\n');
  int error = 0;
  size_t written = Append(events_fd_, text, &error);
  if (IsFull(error) && ReleaseHalf()) written += Append(events_fd_, text.substr(written), &error);
  if (written > 0) torn_ = text[written - 1] != '\n';
  if (written == text.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot append to ", path_, "/events.jsonl"));
}

void RunFolder::MakeReserve() {
  const std::string name = JoinPath(path_, kReserveName);
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  reserve_whole_ = posix_fallocate(fd, 0, kReserveBytes) == 0;
  close(fd);
  if (!reserve_whole_) unlink(name.c_str());
}

bool RunFolder::ReleaseHalf() {
  if (!reserve_whole_) return false;
  reserve_whole_ = false;
  took_reserve_ = truncate(JoinPath(path_, kReserveName).c_str(), kReserveBytes / 2) == 0;
  return took_reserve_;
}

void RunFolder::ReleaseReserve() {
  reserve_whole_ = false;
  unlink(JoinPath(path_, kReserveName).c_str());
}

absl::Status RunFolder::WriteReport(const std::string& path, const Json& report) {
  absl::Status made = PosixFileSystem().MakeDirectories(ParentPath(path));
  if (!made.ok()) return made;
  return ReplaceFile(PosixFileSystem(), path,
                     report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::Status RunFolder::WriteResult(const Json& result) {
  return ReplaceFile(PosixFileSystem(), JoinPath(path_, "result.json"),
                     result.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void RunFolder::PointLatestHere() {
  const std::string latest = JoinPath(ParentPath(path_), "latest");
  const std::string temporary = absl::StrCat(latest, ".tmp.", getpid());
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  std::filesystem::create_symlink(path_.substr(path_.rfind('/') + 1), temporary, ignored);
  if (!ignored) std::filesystem::rename(temporary, latest, ignored);
}

}  // namespace ddprun::coordinator
