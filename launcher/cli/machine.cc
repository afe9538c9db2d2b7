#include "launcher/cli/machine.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;

// "" when it cannot be read: in /proc and /sys that means "not there".
std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

uint32_t CountEntries(const std::string& folder, bool (*counts)(const std::string&)) {
  uint32_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (counts(entry->path().filename().string())) ++count;
  }
  return count;
}

bool IsGpuDevice(const std::string& name) {
  return name.size() > 6 && absl::StartsWith(name, "nvidia") &&
         std::all_of(name.begin() + 6, name.end(), absl::ascii_isdigit);
}

// CUDA takes the list up to the first entry that is no device.
uint32_t CountVisible(const std::string& list) {
  uint32_t count = 0;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (entry.empty() || entry[0] == '-') break;
    ++count;
  }
  return count;
}

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// "max 100000" or "150000 100000" (v2).
double QuotaV2(const std::string& folder) {
  const std::vector<std::string> words =
      absl::StrSplit(ReadText(folder + "/cpu.max"), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double quota = 0, period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period) || period <= 0) {
    return kNoQuota;
  }
  return quota / period;
}

double QuotaV1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!absl::SimpleAtod(ReadText(folder + "/cpu.cfs_quota_us"), &quota) ||
      !absl::SimpleAtod(ReadText(folder + "/cpu.cfs_period_us"), &period) || quota <= 0 ||
      period <= 0) {
    return kNoQuota;
  }
  return quota / period;
}

// The least quota of a cgroup and those above it.
double LeastQuota(const std::string& mount, std::string path,
                  double (*quota_of)(const std::string&)) {
  double least = quota_of(mount);
  while (path.size() > 1) {
    least = std::min(least, quota_of(mount + path));
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  return least;
}

double CgroupQuota(const std::string& root) {
  double least = kNoQuota;
  for (absl::string_view line :
       absl::StrSplit(ReadText(root + "/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    // "0::/user.slice" (v2) or "4:cpu,cpuacct:/docker/…" (v1)
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        least = std::min(least, LeastQuota(root + mount, fields[2], QuotaV2));
      }
    } else if (absl::StrContains(absl::StrCat(",", fields[1], ","), ",cpu,")) {
      for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
        least = std::min(least, LeastQuota(root + mount, fields[2], QuotaV1));
      }
    }
  }
  return least;
}

std::string DriverVersion(const std::string& root) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …"
  for (absl::string_view word :
       absl::StrSplit(ReadText(root + "/proc/driver/nvidia/version"), absl::ByAnyChar(" \t\n"))) {
    const bool number = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isdigit(c) || c == '.';
    });
    if (number && absl::StrContains(word, '.')) return std::string(word);
  }
  return "";
}

}  // namespace

Gpus LookForGpus(const std::string& root, const std::optional<std::string>& visible_devices) {
  Gpus gpus;
  // A container sees the device files of its own GPUs, but /proc lists all of the host's.
  const uint32_t devices = CountEntries(root + "/dev", IsGpuDevice);
  const std::string listed = "/proc/driver/nvidia/gpus";
  const uint32_t known =
      CountEntries(root + listed, [](const std::string& name) { return name[0] != '.'; });
  std::error_code error;
  const bool driver = fs::exists(root + "/proc/driver/nvidia", error);
  gpus.driver = DriverVersion(root);
  // Device files without a driver are left over from an image that was made elsewhere.
  gpus.usable = driver ? devices : 0;
  gpus.looked_at = absl::StrCat(driver ? absl::StrCat(listed, " lists ", known)
                                       : "there is no /proc/driver/nvidia (no driver)",
                                ", there are ", devices, " device files /dev/nvidia<N>, ");
  if (visible_devices) {
    gpus.usable = std::min(gpus.usable, CountVisible(*visible_devices));
    absl::StrAppend(&gpus.looked_at, "CUDA_VISIBLE_DEVICES is \"", *visible_devices, "\"");
  } else {
    absl::StrAppend(&gpus.looked_at, "CUDA_VISIBLE_DEVICES is not set");
  }
  return gpus;
}

uint32_t CoresAvailable(const std::string& root) {
  constexpr int kCoresMax = 8192;
  double cores = 1;
  cpu_set_t* set = CPU_ALLOC(kCoresMax);
  const size_t bytes = CPU_ALLOC_SIZE(kCoresMax);
  if (set != nullptr && sched_getaffinity(0, bytes, set) == 0) cores = CPU_COUNT_S(bytes, set);
  CPU_FREE(set);
  // A part of a core is no core for a worker that computes.
  return static_cast<uint32_t>(std::max(1.0, std::min(cores, CgroupQuota(root))));
}

}  // namespace ddprun::cli
