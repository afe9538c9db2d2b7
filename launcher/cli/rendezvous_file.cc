#include "launcher/cli/rendezvous_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/cli/format.h"
#include "launcher/net/proof.h"

namespace ddprun::cli {
namespace {

constexpr size_t kBytesMax = 64 * 1024;
constexpr size_t kAddressesMax = 64;
constexpr double kLineSeconds = 10;
constexpr double kPauseSecondsMin = 0.05;
constexpr double kPauseSecondsMax = 1;

std::string PathIn(const std::string& run_dir) {
  return JoinPath(run_dir, kRendezvousName);
}

absl::Status Failed(const char* what, const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", strerrordesc_np(error)));
}

absl::Status WriteAll(int fd, const std::string& path, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("cannot write", path, errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : Failed("cannot write", path, errno);
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string text(kBytesMax + 1, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = read(fd, text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("cannot read", path, errno);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

absl::Status CheckTrust(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Failed("cannot look at", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file: remove it"));
  }
  if (info.st_uid != geteuid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " belongs to user ", info.st_uid, " and not to ", geteuid(),
                     ", who could send this node anywhere: choose a --run-dir of your own"));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": others can read or write it: remove it, and choose a --run-dir on "
                     "a file system that keeps the modes of files"));
  }
  return absl::OkStatus();
}

// A network file system remembers that a name was missing; reading the folder asks the server.
void LookAgain(const std::string& folder) {
  std::error_code none;
  const std::filesystem::directory_iterator first(folder, none);
}

// What is known of a file that has not come.
std::string WhyNone(const absl::StatusOr<Rendezvous>& last, const std::string& run_dir,
                    const SlurmStep& step) {
  if (last.ok()) {
    return absl::StrCat("the one there is of step ", last->slurm_job, ".", last->slurm_step,
                        " of Slurm", last->restarts == step.restarts ? "" : ", an earlier start");
  }
  if (!absl::IsNotFound(last.status())) return std::string(last.status().message());
  return access(run_dir.c_str(), F_OK) == 0 ? "the folder is there without it"
                                            : "the folder does not exist here";
}

absl::StatusOr<std::vector<std::string>> AddressesIn(const nlohmann::json& json) {
  std::vector<std::string> addresses;
  for (const auto& address : json.at("addresses")) {
    addresses.push_back(address.get<std::string>());
  }
  if (addresses.empty() || addresses.size() > kAddressesMax) {
    return absl::InvalidArgumentError("no addresses, or too many");
  }
  return addresses;
}

}  // namespace

std::string RendezvousText(const Rendezvous& r) {
  nlohmann::ordered_json json = {{"slurm_job", r.slurm_job}, {"slurm_step", r.slurm_step},
                                 {"restarts", r.restarts},   {"node", r.node},
                                 {"addresses", r.addresses}, {"port", r.port}};
  if (!r.secret.empty()) json["secret"] = r.secret;
  if (r.port == 0) json["exit_code"] = r.exit_code;
  return json.dump() + "\n";
}

absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text) {
  absl::Status odd = absl::InvalidArgumentError("is no rendezvous file of ddprun");
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (text.size() > kBytesMax || !json.is_object()) return odd;
  Rendezvous r;
  try {
    r.slurm_job = json.at("slurm_job").get<std::string>();
    r.slurm_step = json.at("slurm_step").get<std::string>();
    r.restarts = json.at("restarts").get<uint32_t>();
    r.node = json.at("node").get<std::string>();
    r.port = json.at("port").get<uint32_t>();
    r.secret = json.value("secret", "");
    r.exit_code = json.value("exit_code", 0);
    absl::StatusOr<std::vector<std::string>> addresses = AddressesIn(json);
    if (!addresses.ok()) return odd;
    r.addresses = *std::move(addresses);
  } catch (const nlohmann::json::exception&) {
    return odd;
  }
  if (r.port > 65535 || (r.port == 0 && !json.contains("exit_code"))) return odd;
  return r;
}

bool IsOf(const Rendezvous& r, const SlurmStep& step) {
  return r.slurm_job == step.job && r.slurm_step == step.step && r.restarts == step.restarts;
}

absl::Status WriteRendezvous(const std::string& run_dir, const Rendezvous& rendezvous) {
  const std::string path = PathIn(run_dir);
  const std::string own =
      absl::StrCat(path, "-", absl::BytesToHexString(net::MakeNonce().substr(0, 8)));
  const int fd =
      open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return Failed("cannot make", own, errno);
  absl::Status status = WriteAll(fd, own, RendezvousText(rendezvous));
  close(fd);
  if (status.ok() && rename(own.c_str(), path.c_str()) != 0) {
    status = Failed("cannot make", path, errno);
  }
  if (!status.ok()) unlink(own.c_str());
  return status;
}

absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& run_dir) {
  const std::string path = PathIn(run_dir);
  // O_NONBLOCK: a FIFO must not hold up the start.
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return absl::NotFoundError(path);
  if (fd < 0 && errno == ELOOP) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a link: remove it"));
  }
  if (fd < 0) return Failed("cannot read", path, errno);
  absl::Cleanup close_fd = [fd] { close(fd); };
  absl::Status trusted = CheckTrust(fd, path);
  if (!trusted.ok()) return trusted;
  const absl::StatusOr<std::string> text = ReadAll(fd, path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Rendezvous> rendezvous = ParseRendezvous(*text);
  if (!rendezvous.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " ", rendezvous.status().message(), ": remove it"));
  }
  return rendezvous;
}

void RemoveRendezvous(const std::string& run_dir, const SlurmStep& step) {
  const absl::StatusOr<Rendezvous> rendezvous = ReadRendezvous(run_dir);
  if (rendezvous.ok() && IsOf(*rendezvous, step) && rendezvous->port != 0)
    unlink(PathIn(run_dir).c_str());
}

absl::StatusOr<Rendezvous> AwaitRendezvous(const std::string& run_dir, const SlurmStep& step,
                                           double seconds_max, const ClusterWait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double pause_seconds = kPauseSecondsMin;
  double next_line = kLineSeconds;
  while (true) {
    LookAgain(ParentPath(run_dir));
    LookAgain(run_dir);
    absl::StatusOr<Rendezvous> found = ReadRendezvous(run_dir);
    if (found.ok() && IsOf(*found, step)) return found;
    // One that is not to be trusted stays so, until the host replaces it.
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    const std::string& host = step.nodes[0];
    if (waited >= seconds_max) {
      return absl::DeadlineExceededError(absl::StrCat(
          "node ", host, ", which hosts the coordinator, has not written ", PathIn(run_dir),
          " within ", Duration(seconds_max), " (", WhyNone(found, run_dir, step),
          "): --run-dir must be a folder on a file system that all nodes see; without one, set "
          "DDPRUN_SECRET and give --coordinator HOST:PORT (the output of ",
          host, " says whether ddprun has started there)"));
    }
    if (waited >= next_line) {
      next_line += kLineSeconds;
      wait.say(absl::StrCat("waiting for node ", host, " to write ", PathIn(run_dir), " (",
                            WhyNone(found, run_dir, step), "), ", Duration(waited), " of ",
                            Duration(seconds_max)));
    }
    if (!wait.pause(std::clamp(seconds_max - waited, 0.0, pause_seconds))) {
      return absl::CancelledError("stopped while waiting for the coordinator");
    }
    pause_seconds = std::min(pause_seconds * 1.5, kPauseSecondsMax);
  }
}

}  // namespace ddprun::cli
