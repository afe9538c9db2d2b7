#include "launcher/cli/doctor_machine.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// What Docker and Kubernetes give unless told otherwise.
constexpr uint64_t kShmBytesOfContainers = 64 * kMiB;
constexpr uint64_t kShmBytesComfortable = 1024 * kMiB;
constexpr uint64_t kFilesMin = 1024;  // a worker with data loaders opens some hundred
constexpr uint64_t kFilesComfortable = 4096;
constexpr uint64_t kProcessesMin = 1024;  // OpenMP, NCCL and loaders make threads; they count
constexpr int kCapabilitySysPtrace = 19;

uint64_t LimitOf(__rlimit_resource resource, bool hard = false) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return Limits::kUnlimited;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? Limits::kUnlimited : value;
}

std::string Shown(uint64_t limit, bool bytes) {
  if (limit == Limits::kUnlimited) return "unlimited";
  return bytes ? Size(static_cast<double>(limit)) : absl::StrCat(limit);
}

Finding JudgeFiles(const Limits& limits) {
  const std::string seen = absl::StrCat("nofile ", Shown(limits.files, false), " (at most ",
                                        Shown(limits.files_hard, false), ")");
  const uint64_t wished = std::min(limits.files_hard, uint64_t{65536});
  const std::string fix =
      limits.files_hard >= kFilesComfortable
          ? absl::StrCat("ulimit -n ", wished, " before ddprun")
          : "raise nofile in /etc/security/limits.conf, or LimitNOFILE= of the service, or "
            "--ulimit nofile=65536 of the container";
  if (limits.files < kFilesMin) {
    return Problem("open files", seen,
                   "workers with data loaders and connections to their peers need more and end "
                   "with \"Too many open files\"",
                   fix);
  }
  if (limits.files < kFilesComfortable) {
    return Note("open files", seen, "enough for some ranks; data loaders of many workers need more",
                fix);
  }
  return Ok("open files", seen);
}

Finding JudgeLocked(const Limits& limits) {
  const std::string seen = absl::StrCat("memlock ", Shown(limits.locked_bytes, true));
  if (limits.locked_bytes == Limits::kUnlimited) return Ok("locked memory", seen);
  if (limits.root) return Ok("locked memory", seen, "does not apply to root");
  if (!limits.infiniband) {
    return Ok("locked memory", seen, "only InfiniBand needs more, and there is none");
  }
  return Problem("locked memory", seen,
                 "NCCL cannot register memory with the InfiniBand cards here, and fails with "
                 "\"ibv_reg_mr … Cannot allocate memory\"",
                 "memlock unlimited in /etc/security/limits.conf, or LimitMEMLOCK=infinity of the "
                 "service (slurmd, too), or --ulimit memlock=-1 of the container");
}

Finding JudgeProcesses(const Limits& limits) {
  const std::string seen = absl::StrCat("nproc ", Shown(limits.processes, false));
  if (limits.processes >= kProcessesMin || limits.root) return Ok("processes", seen);
  return Problem("processes", seen,
                 "threads count, and each worker has dozens: starts fail with \"Resource "
                 "temporarily unavailable\"",
                 "ulimit -u 65536, or nproc in /etc/security/limits.conf");
}

Finding JudgeCore(const Limits& limits) {
  const std::string where = limits.core_pattern.empty() ? "not known" : limits.core_pattern;
  const bool piped = absl::StartsWith(limits.core_pattern, "|");
  const std::string seen =
      absl::StrCat("core ", Shown(limits.core_bytes, true), ", pattern ", where);
  if (limits.core_bytes == 0 && !piped) {
    return Ok("core dumps", seen,
              "a worker that crashes leaves none; ulimit -c unlimited turns "
              "them on");
  }
  return Ok(
      "core dumps", seen,
      piped ? "a program of the system takes them (coredumpctl lists them with systemd)" : "");
}

// The lowest memory limit above this process, and the cgroup that has it.
struct MemoryLimit {
  uint64_t bytes = Limits::kUnlimited;
  std::string path;
};

MemoryLimit LowestLimit(const World& world, const std::string& mount, std::string group,
                        const char* file) {
  MemoryLimit lowest;
  for (;;) {
    const std::string path = absl::StrCat(mount, group == "/" ? "" : group, "/", file);
    uint64_t bytes = 0;
    // v1 writes "none" as a number near 2^63.
    if (absl::SimpleAtoi(ReadWorldFile(world, path), &bytes) && bytes < uint64_t{1} << 60 &&
        bytes < lowest.bytes) {
      lowest = {bytes, path};
    }
    const size_t slash = group.rfind('/');
    if (group == "/" || group.empty() || slash == std::string::npos) return lowest;
    group.resize(slash);
  }
}

// Of /proc/self/cgroup: the path of this process in the hierarchy of `controller` ("" for v2).
std::string GroupOf(const World& world, const std::string& controller) {
  for (const absl::string_view line :
       absl::StrSplit(ReadWorldFile(world, "/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      return parts[2];
    }
  }
  return "";
}

bool CanMakeGroup(const World& world, const std::string& folder) {
  const std::string path = absl::StrCat(world.root, folder, "/ddprun-doctor-", getpid());
  if (mkdir(path.c_str(), 0755) != 0) return false;
  return rmdir(path.c_str()) == 0;
}

bool MayTrace(const World& world) {
  for (const absl::string_view line :
       absl::StrSplit(ReadWorldFile(world, "/proc/self/status"), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(":\t "));
    if (words[0] != "CapEff") continue;
    uint64_t capabilities = 0;
    return absl::SimpleHexAtoi(words.back(), &capabilities) &&
           (capabilities >> kCapabilitySysPtrace & 1) != 0;
  }
  return false;
}

}  // namespace

Finding JudgeSharedMemory(const SharedMemory& shm) {
  constexpr char kName[] = "shared memory";
  if (!shm.there) {
    return Problem(kName, "there is no /dev/shm",
                   "NCCL and data loaders of a node talk through it and fail",
                   "mount -t tmpfs tmpfs /dev/shm");
  }
  const std::string seen = absl::StrCat("/dev/shm has ", Size(static_cast<double>(shm.bytes)), ", ",
                                        Size(static_cast<double>(shm.bytes_free)), " free");
  if (!shm.writable) {
    return Problem(kName, absl::StrCat(seen, ", and no file can be made in it"),
                   "NCCL and data loaders of a node talk through it and fail",
                   "chmod 1777 /dev/shm, or mount it for writing");
  }
  if (shm.bytes <= kShmBytesOfContainers) {
    return Problem(kName, seen,
                   "data loaders and NCCL fill it soon, and workers die of SIGBUS or \"No space "
                   "left on device\"",
                   "--shm-size=8g of docker run; in Kubernetes an emptyDir with medium: Memory at "
                   "/dev/shm");
  }
  if (shm.bytes_free <= kShmBytesOfContainers) {
    return Problem(kName, seen, "it is full: workers die of SIGBUS",
                   "look at ls -l /dev/shm; files of killed jobs (nccl-*, torch_*) may be removed");
  }
  if (shm.bytes < kShmBytesComfortable) {
    return Note(kName, seen, "little for data loaders of several workers",
                "mount -o remount,size=8G /dev/shm, or --shm-size=8g of docker run");
  }
  return Ok(kName, seen);
}

Outcome CheckSharedMemory(const World& world) {
  const std::string folder = world.root + "/dev/shm";
  SharedMemory shm;
  struct statvfs disk = {};
  shm.there = statvfs(folder.c_str(), &disk) == 0;
  shm.bytes = static_cast<uint64_t>(disk.f_blocks) * disk.f_frsize;
  shm.bytes_free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  const std::string path = absl::StrCat(folder, "/ddprun-doctor-", getpid());
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  shm.writable = fd >= 0;
  if (fd >= 0) {
    close(fd);
    unlink(path.c_str());
  }
  return {{JudgeSharedMemory(shm)}, {}};
}

std::string SharedMemoryNote(const Finding& judged, const std::string& device, uint32_t workers) {
  if (device != "cuda" || workers < 2 || judged.level != Level::kProblem) return "";
  return absl::StrCat(judged.seen, ": ", judged.meaning, ". Fix: ", judged.fix);
}

std::vector<Finding> JudgeLimits(const Limits& limits) {
  return {JudgeFiles(limits), JudgeLocked(limits), JudgeProcesses(limits), JudgeCore(limits)};
}

Outcome CheckLimits(const World& world) {
  Limits limits;
  limits.files = LimitOf(RLIMIT_NOFILE);
  limits.files_hard = LimitOf(RLIMIT_NOFILE, /*hard=*/true);
  limits.locked_bytes = LimitOf(RLIMIT_MEMLOCK);
  limits.processes = LimitOf(RLIMIT_NPROC);
  limits.core_bytes = LimitOf(RLIMIT_CORE);
  limits.root = geteuid() == 0;
  limits.infiniband = !ListWorldFolder(world, "/sys/class/infiniband").empty();
  limits.core_pattern = net::Shown(ReadWorldFile(world, "/proc/sys/kernel/core_pattern"), 100);
  return {JudgeLimits(limits), {}};
}

Outcome CheckCgroup(const World& world) {
  const std::string mount = "/sys/fs/cgroup";
  const bool unified = !ReadWorldFile(world, mount + "/cgroup.controllers").empty() ||
                       !ListWorldFolder(world, mount + "/cgroup.procs").empty();
  const bool hybrid = !ListWorldFolder(world, mount + "/unified").empty();
  const std::string v2_mount = unified ? mount : mount + "/unified";
  const std::string own = GroupOf(world, "");
  const MemoryLimit limit = unified
                                ? LowestLimit(world, mount, own, "memory.max")
                                : LowestLimit(world, mount + "/memory", GroupOf(world, "memory"),
                                              "memory.limit_in_bytes");
  std::string seen = unified ? "version 2" : hybrid ? "version 1, with 2 beside it" : "version 1";
  if (ListWorldFolder(world, mount).empty()) {
    return {{Ok("cgroups", "none",
                "ddprun does not need them: it ends workers and whatever they "
                "have started by process")},
            {}};
  }
  absl::StrAppend(&seen, ", ",
                  limit.bytes == Limits::kUnlimited
                      ? "no memory limit"
                      : absl::StrCat("at most ", Size(static_cast<double>(limit.bytes)),
                                     " of memory (", limit.path, ")"));
  const bool can_make =
      (unified || hybrid) && CanMakeGroup(world, absl::StrCat(v2_mount, own == "/" ? "" : own));
  absl::StrAppend(&seen, can_make ? ", groups can be made" : ", no groups can be made");
  return {{Ok("cgroups", seen,
              limit.bytes == Limits::kUnlimited
                  ? ""
                  : "all workers of this node share that memory; the kernel kills one when it is "
                    "used up, and ddprun says so")},
          {}};
}

Finding JudgeTools(const Tools& tools) {
  constexpr char kName[] = "hang reports";
  const std::string seen =
      absl::StrCat("py-spy ", tools.py_spy ? "found" : "not found", ", gdb ",
                   tools.gdb ? "found" : "not found", ", ptrace_scope ", tools.ptrace_scope);
  if (tools.ptrace_scope >= 3 || (tools.ptrace_scope == 2 && !tools.may_trace)) {
    return Note(kName, seen,
                "stacks of hanging workers cannot be read; the report says only what "
                "the kernel shows",
                "sysctl kernel.yama.ptrace_scope=1");
  }
  if (!tools.py_spy && !tools.gdb) {
    return Note(kName, seen,
                "reports of hanging workers say what the kernel shows, but no lines "
                "of Python or C++",
                "pip install py-spy for Python, apt install gdb for C++");
  }
  if (!tools.py_spy) {
    return Note(kName, seen, "reports of hanging workers have C++ lines, but no Python lines",
                "pip install py-spy");
  }
  return Ok(kName, seen);
}

Outcome CheckTools(const World& world) {
  Tools tools;
  tools.py_spy = !FindOnPath(world, "py-spy").empty();
  tools.gdb = !FindOnPath(world, "gdb").empty();
  tools.ptrace_scope =
      LeadingNumber(ReadWorldFile(world, "/proc/sys/kernel/yama/ptrace_scope")).value_or(0);
  tools.may_trace = MayTrace(world);
  return {{JudgeTools(tools)}, {}};
}

}  // namespace ddprun::doctor
