#include "launcher/coordinator/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/coordinator/root_cause.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

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

Json FailureJson(const FailureRecord& failure) {
  Json json = {{"generation", failure.generation},
               {"rank", failure.rank},
               {"node", failure.node},
               {"pid", failure.pid}};
  if (failure.signal != 0) {
    json["signal"] = SignalName(failure.signal);
  } else {
    json["exit_code"] = failure.exit_code;
  }
  json["t"] = failure.t;
  json["reason"] = failure.reason;
  json["log_tail"] = failure.log_tail;
  return json;
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
    past.generation = std::max(past.generation, event.value("generation", uint64_t{0}));
    const std::string name = event.value("event", "");
    if (name == "restart_scheduled") ++past.restarts;
    if (name == "generation_started") past.may_run = true;
    if (name == "generation_ended") past.may_run = false;
    past.time_lost_seconds += event.value("time_lost_s", 0.0);
  }
  return past;
}

absl::Status RunFolder::WriteJob(const Json& job) {
  return ReplaceFile(PosixFileSystem(), JoinPath(path_, "job.json"),
                     job.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string RunFolder::AppendEvent(const Json& event, double t, absl::Status* status) {
  Json full = {{"t", t}};
  full.update(event);
  std::string line = full.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const ssize_t written = write(events_fd_, line.data(), line.size());
  *status = written == static_cast<ssize_t>(line.size())
                ? absl::OkStatus()
                : absl::ErrnoToStatus(written < 0 ? errno : ENOSPC,
                                      absl::StrCat("cannot append to ", path_, "/events.jsonl"));
  line.pop_back();
  return line;
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

Json MakeResult(const State& state, const Outcome& outcome) {
  Json metrics = Json::object();
  uint64_t final_step = std::max(state.committed_step, state.best_step);
  final_step = std::max(final_step, state.generation.step);
  std::string digest;
  for (const auto& [key, value] : state.result_values) {
    double number = 0;
    if (key == "FINAL_STEP") {
      if (!absl::SimpleAtoi(value, &final_step)) continue;
    } else if (key == "WEIGHTS_DIGEST") {
      digest = value;
    } else if (key.rfind("METRIC.", 0) == 0 && absl::SimpleAtod(value, &number)) {
      metrics[key.substr(7)] = number;
    }
  }
  Json failures = Json::array();
  for (const FailureRecord& failure : state.failures) failures.push_back(FailureJson(failure));
  Json result = {{"status", outcome.status}, {"exit_code", outcome.exit_code}};
  if (!outcome.failure_kind.empty()) result["failure_kind"] = outcome.failure_kind;
  if (!outcome.reason.empty()) result["reason"] = outcome.reason;
  result["job_id"] = state.spec.job_id();
  result["generations"] = state.generation.number;
  result["restarts"] = state.restarts_before + state.history.restarts_charged;
  result["final_step"] = final_step;
  result["metrics"] = std::move(metrics);
  if (!digest.empty()) result["weights_digest"] = digest;
  if (outcome.status == "failed" && !failures.empty()) result["first_failure"] = failures.back();
  result["failures"] = std::move(failures);
  result["time_lost_s"] = state.time_lost_seconds;
  return result;
}

}  // namespace ddprun::coordinator
