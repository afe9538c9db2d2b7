#include "launcher/cli/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

// More than the first files of a run take.
constexpr size_t kProbeBytes = 64u << 10;
constexpr size_t kTailBytes = 64u << 10;

absl::Status Errno(int error, const std::string& what) {
  return absl::ErrnoToStatus(error, what);
}

absl::Status CheckNotInUse(const std::string& path) {
  const std::string lock = JoinPath(path, ".lock");
  int fd = open(lock.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = open(lock.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();
  const bool busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  if (!busy) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("run folder ", path,
                   " is in use by a running ddprun: choose another --run-dir, "
                   "or stop that job first"));
}

// Whether the last thing that happened is that the job succeeded: result.json alone may be left
// over from a shorter run before.
bool EndedWell(const std::string& path) {
  std::ifstream file(JoinPath(path, "events.jsonl"), std::ios::binary | std::ios::ate);
  if (!file) return false;
  const auto end = static_cast<size_t>(file.tellg());
  const size_t bytes = std::min(end, kTailBytes);
  std::string tail(bytes, '\0');
  file.seekg(static_cast<std::streamoff>(end - bytes));
  if (!file.read(tail.data(), static_cast<std::streamsize>(bytes))) return false;
  const size_t finished = tail.rfind("\"event\":\"job_finished\"");
  const size_t started = tail.rfind("\"event\":\"job_started\"");
  if (finished == std::string::npos) return false;
  if (started != std::string::npos && started > finished) return false;
  const size_t line_end = tail.find('\n', finished);
  const std::string line = tail.substr(finished, line_end - finished);
  return absl::StrContains(line, "\"status\":\"succeeded\"");
}

uint64_t NewestCheckpoint(const std::string& path) {
  uint64_t newest = 0;
  const auto names = PosixFileSystem().List(JoinPath(path, "checkpoints"));
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    uint64_t step = 0;
    if (absl::StartsWith(name, "step-") && absl::SimpleAtoi(name.substr(5), &step)) {
      newest = std::max(newest, step);
    }
  }
  return newest;
}

// Makes `path` and its missing parents; *made lists them, outermost first.
absl::Status MakeFolders(const std::string& path, std::vector<std::string>* made) {
  std::vector<std::string> missing;
  struct stat info = {};
  for (std::string p = path; stat(p.c_str(), &info) != 0 && errno == ENOENT; p = ParentPath(p)) {
    missing.push_back(p);
    if (p == "/" || p == ".") break;
  }
  for (auto p = missing.rbegin(); p != missing.rend(); ++p) {
    if (mkdir(p->c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;  // somebody else has just made it
      return Errno(errno, absl::StrCat("cannot create the folder ", *p));
    }
    made->push_back(*p);
  }
  return absl::OkStatus();
}

// A full disk shows itself when bytes are written (local disks reserve room for them) or when the
// file is closed (network disks); waiting for the platter as well would take a third of the time of
// a short job.
absl::Status Probe(const std::string& folder) {
  const std::string path = JoinPath(folder, absl::StrCat(".probe.", getpid()));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return Errno(errno, absl::StrCat("cannot create ", path));
  const std::string data(kProbeBytes, 'x');
  const ssize_t written = write(fd, data.data(), data.size());
  int error = written == static_cast<ssize_t>(data.size()) ? 0 : written < 0 ? errno : ENOSPC;
  if (close(fd) != 0 && error == 0) error = errno;
  unlink(path.c_str());
  return error == 0 ? absl::OkStatus() : Errno(error, absl::StrCat("cannot write ", path));
}

}  // namespace

std::string NewJobId() {
  const time_t now = time(nullptr);
  tm local = {};
  localtime_r(&now, &local);
  std::array<unsigned char, 2> random = {};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    random = {static_cast<unsigned char>(getpid() >> 8), static_cast<unsigned char>(getpid())};
  }
  return absl::StrFormat("%04d%02d%02d-%02d%02d%02d-%02x%02x", local.tm_year + 1900,
                         local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                         random[0], random[1]);
}

absl::StatusOr<RunFolderState> LookAtRunFolder(const std::string& path) {
  RunFolderState state;
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return state;
    return Errno(errno, absl::StrCat("cannot look at the run folder ", path));
  }
  state.exists = true;
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a file: choose another --run-dir"));
  }
  if (absl::Status status = CheckNotInUse(path); !status.ok()) return status;
  const std::string job = JoinPath(path, "job.json");
  if (access(job.c_str(), F_OK) != 0) return state;
  state.holds_job = true;
  const absl::StatusOr<std::string> text = PosixFileSystem().ReadFile(job);
  if (!text.ok()) return text.status();
  state.job_json = *text;
  const nlohmann::json parsed = nlohmann::json::parse(*text, nullptr, false);
  if (parsed.is_object() && parsed.contains("job_id") && parsed["job_id"].is_string()) {
    state.job_id = parsed["job_id"].get<std::string>();
  }
  state.committed_step = NewestCheckpoint(path);
  if (!EndedWell(path)) return state;
  const absl::StatusOr<std::string> result =
      PosixFileSystem().ReadFile(JoinPath(path, "result.json"));
  if (!result.ok()) return state;
  const nlohmann::json outcome = nlohmann::json::parse(*result, nullptr, false);
  if (!outcome.is_object() ||
      outcome.value("status", nlohmann::json()) != nlohmann::json("succeeded"))
    return state;
  state.succeeded = true;
  if (const auto step = outcome.find("final_step");
      step != outcome.end() && step->is_number_unsigned()) {
    state.final_step = step->get<uint64_t>();
  }
  return state;
}

absl::Status MakeRunFolder(const std::string& path) {
  std::vector<std::string> made;
  absl::Status status = MakeFolders(path, &made);
  if (status.ok()) status = Probe(path);
  if (status.ok()) return status;
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) rmdir(folder->c_str());
  return absl::Status(status.code(),
                      absl::StrCat("the run folder ", path, " cannot be used: ", status.message(),
                                   "; make room, or choose a --run-dir elsewhere"));
}

}  // namespace ddprun::cli
