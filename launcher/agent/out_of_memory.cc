#include "launcher/agent/out_of_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::agent {
namespace {

constexpr int kKernelRecordsMax = 4096;             // read at one death
constexpr uint64_t kUnlimited = uint64_t{1} << 60;  // v1 writes "none" as a number near 2^63
constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;    // elsewhere the kernel's log has other pids
constexpr size_t kGroupsMax = 64;
constexpr uint64_t kPeakTolerance = 64;  // a 64th of the limit

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

bool HasWord(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = Split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes a space as \040.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 3);
    const bool escaped = text[i] == '\\' && digits.size() == 3 &&
                         digits.find_first_not_of("01234567") == std::string_view::npos;
    unsigned code = 0;
    for (const char digit : digits) code = code * 8 + static_cast<unsigned>(digit - '0');
    plain.push_back(escaped ? static_cast<char>(code) : text[i]);
    if (escaped) i += 3;
  }
  return plain;
}

struct Mount {
  std::string root;   // which cgroup of the hierarchy is mounted
  std::string point;  // where
  bool v2 = false;
};

// The mount of v1's memory controller, or of v2.
std::optional<Mount> FindMount(std::string_view mounts, bool v2) {
  for (std::string_view line : Split(mounts, '\n')) {
    const std::vector<std::string_view> words = Split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string_view type = dash[1];
    if (v2 ? type != "cgroup2" : type != "cgroup" || !HasWord(dash[3], "memory")) continue;
    return Mount{Unescaped(words[3]), Unescaped(words[4]), v2};
  }
  return std::nullopt;
}

// The path of the own cgroup in v1's memory hierarchy, or in v2's.
std::optional<std::string> OwnPath(std::string_view cgroups, bool v2) {
  for (std::string_view line : Split(cgroups, '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? line.starts_with("0::") : HasWord(controllers, "memory")) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

uint64_t NumberAfter(std::string_view text, std::string_view key) {
  for (std::string_view line : Split(text, '\n')) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') continue;
    uint64_t value = 0;
    std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

std::string ReadGroupFile(const MemoryGroup& group, const char* name) {
  absl::StatusOr<std::string> text = PosixFileSystem().ReadFile(group.folder + "/" + name);
  return text.ok() ? *text : "";
}

// "max", "209715200\n"; 0: no limit.
uint64_t ParseLimit(std::string_view text) {
  uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return 0;
  return value >= kUnlimited ? 0 : value;
}

}  // namespace

std::vector<MemoryGroup> FindMemoryGroups(std::string_view cgroups, std::string_view mounts) {
  for (const bool v2 : {false, true}) {  // a hybrid machine has the memory controller in v1
    const std::optional<Mount> mount = FindMount(mounts, v2);
    const std::optional<std::string> path = OwnPath(cgroups, v2);
    if (!mount || !path) continue;
    // Below the cgroup that is mounted; a namespace may show a path that lies elsewhere.
    std::string below = *path;
    if (mount->root != "/") {
      below = below.starts_with(mount->root) ? below.substr(mount->root.size()) : "";
    }
    if (below.find("/..") != std::string::npos) below.clear();
    std::vector<MemoryGroup> groups;
    while (!below.empty() && below != "/" && groups.size() < kGroupsMax) {
      groups.push_back({below, mount->point + below, v2});
      below.resize(below.rfind('/') == std::string::npos ? 0 : below.rfind('/'));
    }
    groups.push_back({"/", mount->point, v2});
    return groups;
  }
  return {};
}

std::vector<OomCounters> ReadOomCounters(const std::vector<MemoryGroup>& groups) {
  std::vector<OomCounters> all;
  for (const MemoryGroup& group : groups) {
    OomCounters counters;
    if (group.v2) {
      const std::string events = ReadGroupFile(group, "memory.events");
      counters.kills = NumberAfter(events, "oom_kill");
      counters.limit_reached = NumberAfter(events, "oom");
      counters.limit_bytes = ParseLimit(ReadGroupFile(group, "memory.max"));
    } else {
      counters.kills = NumberAfter(ReadGroupFile(group, "memory.oom_control"), "oom_kill");
      // Where memory and swap together are limited, that limit is reached first.
      counters.limit_reached = ParseLimit(ReadGroupFile(group, "memory.failcnt")) +
                               ParseLimit(ReadGroupFile(group, "memory.memsw.failcnt"));
      counters.limit_bytes = ParseLimit(ReadGroupFile(group, "memory.limit_in_bytes"));
      if (counters.limit_bytes == 0) {
        counters.limit_bytes = ParseLimit(ReadGroupFile(group, "memory.memsw.limit_in_bytes"));
      }
      counters.peak_bytes = ParseLimit(ReadGroupFile(group, "memory.max_usage_in_bytes"));
    }
    all.push_back(counters);
  }
  return all;
}

bool NamesOomKilled(std::string_view record, pid_t pid) {
  constexpr std::string_view kMark = "Killed process ";
  const size_t at = record.find(kMark);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = record.substr(at + kMark.size());
  pid_t named = 0;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), named);
  return result.ec == std::errc() && named == pid &&
         (result.ptr == rest.data() + rest.size() || *result.ptr == ' ' || *result.ptr == ',');
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  snprintf(text, sizeof text, "%.4g %s", value, kUnits[unit]);
  return text;
}

OomWatch::~OomWatch() {
  if (kernel_log_ >= 0) close(kernel_log_);
}

void OomWatch::Begin(std::vector<MemoryGroup> groups) {
  groups_ = std::move(groups);
  begin_ = ReadOomCounters(groups_);
  explained_ = 0;
  named_.clear();
  if (kernel_log_ >= 0) close(kernel_log_);
  kernel_log_ = -1;
}

void OomWatch::Begin() {
  const absl::StatusOr<std::string> cgroups = PosixFileSystem().ReadFile("/proc/self/cgroup");
  const absl::StatusOr<std::string> mounts = PosixFileSystem().ReadFile("/proc/self/mountinfo");
  Begin(cgroups.ok() && mounts.ok() ? FindMemoryGroups(*cgroups, *mounts)
                                    : std::vector<MemoryGroup>());
  struct stat pids = {};
  if (stat("/proc/self/ns/pid", &pids) != 0 || pids.st_ino != kFirstPidNamespace) return;
  kernel_log_ = open("/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (kernel_log_ >= 0) lseek(kernel_log_, 0, SEEK_END);
}

bool OomWatch::KernelLogNames(pid_t pid) {
  char record[8192];
  for (int i = 0; kernel_log_ >= 0 && i < kKernelRecordsMax; ++i) {
    const ssize_t size = read(kernel_log_, record, sizeof record);
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: some were overwritten
    if (size <= 0) break;
    constexpr std::string_view kMark = "Killed process ";
    const std::string_view text(record, static_cast<size_t>(size));
    const size_t at = text.find(kMark);
    if (at == std::string_view::npos) continue;
    pid_t named = 0;
    std::from_chars(record + at + kMark.size(), record + size, named);
    if (NamesOomKilled(text, named)) named_.push_back(named);
  }
  return std::find(named_.begin(), named_.end(), pid) != named_.end();
}

v1::OutOfMemory OomWatch::Describe(const std::vector<OomCounters>& now) const {
  v1::OutOfMemory out;
  for (size_t i = 0; i < now.size(); ++i) {
    const uint64_t limit = now[i].limit_bytes;
    // The kernel charges in batches, so that the last step may stay just below the limit.
    const bool reached = now[i].limit_reached > begin_[i].limit_reached ||
                         now[i].peak_bytes >= limit - limit / kPeakTolerance;
    if (limit == 0 || !reached) continue;
    out.set_limit_bytes(now[i].limit_bytes);
    out.set_text(absl::StrCat("OOM-killed, limit ", FormatBytes(now[i].limit_bytes), " (cgroup ",
                              groups_[i].name, ")"));
    return out;
  }
  out.set_text("OOM-killed, the memory of the machine (or of a cgroup around it) was full");
  return out;
}

std::optional<v1::OutOfMemory> OomWatch::Explain(pid_t pid) {
  const std::vector<OomCounters> now = ReadOomCounters(groups_);
  const bool counted = !now.empty() && now[0].kills > begin_[0].kills + explained_;
  if (!counted && !KernelLogNames(pid)) return std::nullopt;
  if (counted) ++explained_;
  return Describe(now);
}

}  // namespace ddprun::agent
