// `ddprun logs`: the run folder's logs, merged by time (launcher/logs).
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/cli/commands.h"
#include "launcher/logs/merge.h"
#include "launcher/logs/rank_files.h"
#include "launcher/logs/rank_stream.h"
#include "launcher/logs/run_events.h"
#include "launcher/logs/watch.h"

namespace ddprun::cli {
namespace {

constexpr size_t kOutputBytes = 256u << 10;
constexpr size_t kRunsNamedMax = 5;

// Standard output through a buffer of our own: whole lines, few writes.
class Output {
 public:
  void Write(std::string_view bytes) {
    buffer_.append(bytes);
    if (buffer_.size() >= kOutputBytes) Flush();
  }
  void Flush() {
    std::string_view rest = buffer_;
    while (!rest.empty() && error_ == 0) {
      const ssize_t size = write(STDOUT_FILENO, rest.data(), rest.size());
      if (size > 0) rest.remove_prefix(static_cast<size_t>(size));
      if (size < 0 && errno != EINTR) error_ = errno;
    }
    buffer_.clear();
  }
  int error() const { return error_; }

 private:
  std::string buffer_;
  int error_ = 0;
};

bool HoldsRun(const std::string& folder) {
  return access(JoinPath(folder, "events.jsonl").c_str(), R_OK) == 0;
}

// The newest runs there are, for a message.
std::string NamesOfRuns() {
  const auto names = PosixFileSystem().List("runs");
  std::vector<std::string> runs;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name != "latest" && HoldsRun(JoinPath("runs", name))) runs.push_back(name);
  }
  if (runs.empty()) return "there is no run in ./runs";
  const size_t more = runs.size() > kRunsNamedMax ? runs.size() - kRunsNamedMax : 0;
  runs.erase(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(more));
  return absl::StrCat("in ./runs there are ", more > 0 ? "… " : "", absl::StrJoin(runs, " "));
}

absl::StatusOr<std::string> FindRun(const std::string& wanted) {
  const std::string name = wanted.empty() ? "runs/latest" : wanted;
  for (const std::string& folder : {name, JoinPath("runs", name)}) {
    if (HoldsRun(folder)) return folder;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("logs: ", name, " is no run folder, and no job in ./runs: ", NamesOfRuns(),
                   "; give the run folder (the one that holds events.jsonl) or a job id"));
}

int64_t SinceNs(const LogsOptions& options) {
  double seconds = options.since_seconds.value_or(0);
  if (options.since_seconds_ago) {
    seconds = static_cast<double>(time(nullptr)) - *options.since_seconds_ago;
  }
  constexpr double kSecondsMax = 9e9;  // in nanoseconds still an int64_t: the year 2255
  return static_cast<int64_t>(std::clamp(seconds, 0.0, kSecondsMax) * 1e9);
}

class LogsRun {
 public:
  LogsRun(const LogsOptions& options, std::string run_dir)
      : options_(options),
        since_ns_(SinceNs(options)),
        run_dir_(std::move(run_dir)),
        events_(run_dir_),
        merger_([this](std::string_view bytes) { output_.Write(bytes); }) {}

  int Run() {
    RaiseFileLimit();
    watch_.Add(run_dir_);
    bool going_on = true;
    while (going_on && output_.error() == 0) {
      events_.Read();
      // Asked before the files are looked at, so that what came last is not missed.
      going_on = options_.follow && GoesOn();
      watch_.Add(JoinPath(run_dir_, "logs"));
      ShowWhatIsThere(going_on);
      output_.Flush();
      if (going_on && output_.error() == 0) watch_.Wait();
    }
    merger_.Finish();
    output_.Flush();
    if (output_.error() != 0) {
      std::fprintf(stderr, "ddprun: logs: cannot write to standard output: %s\n",
                   strerror(output_.error()));
      return kExitInternal;
    }
    if (generation_ == 0 && options_.generation && !options_.follow) {
      std::fprintf(stderr, "ddprun: logs: %s has no generation %llu\n", run_dir_.c_str(),
                   static_cast<unsigned long long>(*options_.generation));
      return kExitBadUsage;
    }
    return HasAllRanks() ? 0 : kExitBadUsage;
  }

 private:
  bool HasAllRanks() const {
    if (generation_ == 0 || options_.follow) return true;
    for (uint32_t rank : options_.ranks) {
      if (there_.contains(rank)) continue;
      std::fprintf(stderr, "ddprun: logs: %s has no log of rank %u; there are those of %s\n",
                   run_dir_.c_str(), rank, absl::StrJoin(there_, ", ").c_str());
      return false;
    }
    return true;
  }

  // Two descriptors for each rank.
  static void RaiseFileLimit() {
    rlimit files = {};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  bool GoesOn() {
    if (events_.finished()) return false;
    const std::vector<uint64_t> generations = logs::ListGenerations(run_dir_);
    if (options_.generation && !generations.empty() && generations.back() > *options_.generation) {
      return false;
    }
    // Where the lock cannot be seen from here, the events alone tell.
    if (watch_.remote() || logs::IsLocked(run_dir_)) return true;
    events_.Read();
    if (!events_.finished()) {
      std::fprintf(stderr,
                   "ddprun: logs: the job does not run: its ddprun ended without a result\n");
    }
    return false;
  }

  bool Wanted(uint32_t rank) const {
    return options_.ranks.empty() ||
           std::find(options_.ranks.begin(), options_.ranks.end(), rank) != options_.ranks.end();
  }

  void ShowWhatIsThere(bool going_on) {
    std::vector<uint64_t> generations = logs::ListGenerations(run_dir_);
    const bool newest_only = options_.tail.has_value() && !options_.generation;
    if (first_look_ && newest_only && generations.size() > 1) {
      generations.erase(generations.begin(), generations.end() - 1);
    }
    for (uint64_t generation : generations) {
      if (options_.generation && generation != *options_.generation) continue;
      if (generation < generation_) continue;
      if (generation > generation_) {
        // Nothing of a generation is left when the next one begins.
        merger_.Finish();
        generation_ = generation;
        shown_.clear();
      }
      AddRanks(going_on);
      merger_.Run(/*at_end=*/false);
    }
    first_look_ = false;
  }

  // The ranks of the generation whose logs were not there before.
  void AddRanks(bool going_on) {
    const std::string folder = logs::GenerationFolder(run_dir_, generation_);
    if (going_on) watch_.Add(folder);
    const bool live = going_on && generation_ == logs::ListGenerations(run_dir_).back();
    if (live) events_.Read();
    for (const auto& [rank, files] : logs::ListRanks(folder)) {
      there_.insert(rank);
      if (!Wanted(rank) || shown_.contains(rank)) continue;
      const std::string node = events_.NodeOf(generation_, rank);
      if (node.empty() && live) continue;  // the event that names it is on its way
      shown_.insert(rank);
      logs::Place begin = logs::Beginning(files);
      if (since_ns_ > 0) begin = logs::Later(begin, logs::SincePlace(files, since_ns_));
      if (options_.tail && first_look_) {
        begin = logs::Later(begin, logs::TailPlace(files, *options_.tail));
      }
      merger_.Add(
          std::make_unique<logs::RankStream>(files, begin),
          node.empty() ? absl::StrCat("[", rank, "] ") : absl::StrCat("[", node, ":", rank, "] "));
    }
  }

  const LogsOptions& options_;
  const int64_t since_ns_;
  const std::string run_dir_;
  logs::RunEvents events_;
  logs::Watch watch_;
  Output output_;
  logs::Merger merger_;
  uint64_t generation_ = 0;   // the one that is shown
  std::set<uint32_t> shown_;  // its ranks
  std::set<uint32_t> there_;  // ranks of any generation that was looked at
  bool first_look_ = true;    // what comes after it is all new
};

}  // namespace

int RunLogs(const LogsOptions& options) {
  absl::StatusOr<std::string> run_dir = FindRun(options.run);
  if (!run_dir.ok()) {
    std::fprintf(stderr, "ddprun: %s\n", std::string(run_dir.status().message()).c_str());
    return kExitBadUsage;
  }
  return LogsRun(options, *std::move(run_dir)).Run();
}

}  // namespace ddprun::cli
