#include "launcher/keeper/spec.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>

namespace ddprun::keeper {
namespace {

bool ScanInteger(std::string_view text, int64_t max, int64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= 0 && *value <= max;
}

bool ScanFlag(std::string_view text, bool* flag) {
  int64_t value = 0;
  if (!ScanInteger(text, 1, &value)) return false;
  *flag = value == 1;
  return true;
}

// "0-3,8", ascending.
bool ScanCpus(std::string_view text, std::vector<int>* cpus) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t dash = part.find('-');
    int64_t first = 0;
    int64_t last = 0;
    if (!ScanInteger(part.substr(0, dash), kCpuMax, &first)) return false;
    last = first;
    if (dash != std::string_view::npos && !ScanInteger(part.substr(dash + 1), kCpuMax, &last)) {
      return false;
    }
    if (first > last || (!cpus->empty() && first <= cpus->back())) return false;
    for (int64_t cpu = first; cpu <= last; ++cpu) cpus->push_back(static_cast<int>(cpu));
  }
  return !cpus->empty();
}

// A key of the whole job. False: the value makes no sense.
bool TakeJobKey(std::string_view key, std::string_view value, Spec* spec) {
  if (key == "JOB") {
    spec->job = value;
  } else if (key == "GENERATION") {
    spec->generation = value;
  } else if (key == "NODE") {
    spec->node = value;
  } else if (key == "GRACE_MS") {
    return ScanInteger(value, kDurationMsMax, &spec->grace_ms);
  } else if (key == "LEASE_UNTIL_NS") {
    return ScanInteger(value, INT64_MAX - 1, &spec->lease_until_ns);
  } else if (key == "LOG_BYTES_MAX") {
    return ScanInteger(value, INT64_MAX, &spec->log_bytes_max) &&
           (spec->log_bytes_max == 0 || spec->log_bytes_max >= kLogBytesMaxMin);
  } else if (key == "LOG_FILES_KEPT") {
    return ScanInteger(value, UINT32_MAX, &spec->log_files_kept);
  } else if (key == "LEASE_CLOCK") {
    spec->lease_monotonic = value == "monotonic";
    return spec->lease_monotonic || value == "boot";
  } else if (key == "HANG_MS") {
    return ScanInteger(value, kDurationMsMax, &spec->hang_ms);
  } else if (key == "FOREGROUND") {
    return ScanFlag(value, &spec->foreground);
  } else if (key == "STANDBY") {
    return ScanFlag(value, &spec->standby);
  }
  return true;
}

// A key of the worker last begun. `value` is zero-terminated, since it ends where its string ends.
bool TakeWorkerKey(std::string_view key, std::string_view value, WorkerSpec* worker) {
  if (key == "ARG") {
    worker->arguments.push_back(value.data());
  } else if (key == "ENV") {
    worker->environment.push_back(value.data());
    return value.find('=') != std::string_view::npos;
  } else if (key == "CWD") {
    worker->directory = value.data();
  } else if (key == "LOG") {
    worker->log = value.data();
  } else if (key == "CONSOLE") {
    return ScanFlag(value, &worker->console);
  } else if (key == "CPUS") {
    worker->cpus.clear();
    return ScanCpus(value, &worker->cpus);
  }
  return true;
}

bool IsWorkerKey(std::string_view key) {
  return key == "ARG" || key == "ENV" || key == "CWD" || key == "LOG" || key == "CONSOLE" ||
         key == "CPUS";
}

std::string Check(const Spec& spec) {
  if (spec.workers.empty()) return "it names no worker";
  std::set<int64_t> ranks;
  for (const WorkerSpec& worker : spec.workers) {
    const std::string who = "worker " + std::to_string(worker.rank);
    if (!ranks.insert(worker.rank).second) return who + " stands there twice";
    if (worker.arguments.empty()) return who + " has no ARG";
    if (worker.log == nullptr || *worker.log == '\0') return who + " has no LOG";
  }
  return "";
}

}  // namespace

std::optional<Spec> ParseSpec(std::string_view bytes, std::string* problem) {
  Spec spec;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\0');
    const std::string_view line = bytes.substr(0, end);
    const size_t equals = line.find('=');
    if (end == std::string_view::npos || equals == std::string_view::npos) {
      *problem = "not a zero-terminated KEY=VALUE: '" + std::string(line.substr(0, 80)) + "'";
      return std::nullopt;
    }
    bytes.remove_prefix(end + 1);
    const std::string_view key = line.substr(0, equals);
    const std::string_view value = line.substr(equals + 1);
    bool good = true;
    if (key == "WORKER") {
      spec.workers.emplace_back();
      good = spec.workers.size() <= kWorkersMax &&
             ScanInteger(value, INT32_MAX, &spec.workers.back().rank);
    } else if (IsWorkerKey(key)) {
      good = !spec.workers.empty() && TakeWorkerKey(key, value, &spec.workers.back());
    } else {
      good = TakeJobKey(key, value, &spec);
    }
    if (!good) {
      *problem =
          "this value or its place makes no sense: '" + std::string(line.substr(0, 80)) + "'";
      return std::nullopt;
    }
  }
  *problem = Check(spec);
  if (!problem->empty()) return std::nullopt;
  return spec;
}

}  // namespace ddprun::keeper
