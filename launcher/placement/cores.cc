#include "launcher/placement/cores.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/placement/topology.h"

namespace ddprun::placement {
namespace {

// "" when it cannot be read: in /proc and /sys that means "not there".
std::string ReadQuotaFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// "max 100000" or "150000 100000" (v2).
double QuotaV2(const std::string& folder) {
  const std::vector<std::string> words =
      absl::StrSplit(ReadQuotaFile(folder + "/cpu.max"), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double quota = 0, period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period) || period <= 0) {
    return kNoQuota;
  }
  return quota / period;
}

double QuotaV1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!absl::SimpleAtod(ReadQuotaFile(folder + "/cpu.cfs_quota_us"), &quota) ||
      !absl::SimpleAtod(ReadQuotaFile(folder + "/cpu.cfs_period_us"), &period) || quota <= 0 ||
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

}  // namespace

double CpuQuota(const std::string& root) {
  double least = kNoQuota;
  for (absl::string_view line :
       absl::StrSplit(ReadQuotaFile(root + "/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
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

uint32_t CoresAvailable(const std::string& root) {
  const double cores = static_cast<double>(AllowedCpus().size());
  return static_cast<uint32_t>(std::max(1.0, std::min(cores, CpuQuota(root))));
}

}  // namespace ddprun::placement
