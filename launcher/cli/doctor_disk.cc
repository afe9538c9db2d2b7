#include "launcher/cli/doctor_disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kProbeBytes = 64 << 20;
constexpr uint64_t kShareOfRoom = 8;
constexpr size_t kChunkBytes = 1 << 20;
constexpr std::chrono::milliseconds kWriteTimeMax{1500};
constexpr std::chrono::milliseconds kSyncTimeMax{500};
constexpr int kSyncsMax = 16;
constexpr uint64_t kBytesFreeMin = uint64_t{1} << 30;
constexpr uint64_t kBytesFreeComfortable = uint64_t{20} << 30;
constexpr uint64_t kFilesFreeMin = 1000;
constexpr double kSlowBytesPerSecond = 50e6;
constexpr double kSlowSyncSeconds = 0.1;

struct KnownFileSystem {
  uint64_t magic;
  const char* name;
  DiskKind kind;
};

constexpr KnownFileSystem kKnown[] = {
    {0x6969, "nfs", DiskKind::kNetwork},         {0xFF534D42, "cifs", DiskKind::kNetwork},
    {0xFE534D42, "smb2", DiskKind::kNetwork},    {0x0BD00BD0, "lustre", DiskKind::kNetwork},
    {0x47504653, "gpfs", DiskKind::kNetwork},    {0x00C36400, "ceph", DiskKind::kNetwork},
    {0x19830326, "beegfs", DiskKind::kNetwork},  {0x65735546, "fuse", DiskKind::kNetwork},
    {0x01021997, "9p", DiskKind::kNetwork},      {0x6A656A63, "virtiofs", DiskKind::kNetwork},
    {0x7461636F, "ocfs2", DiskKind::kNetwork},   {0x01161970, "gfs2", DiskKind::kNetwork},
    {0x01021994, "tmpfs", DiskKind::kMemory},    {0x858458F6, "ramfs", DiskKind::kMemory},
    {0x794C7630, "overlay", DiskKind::kOverlay}, {0xEF53, "ext4", DiskKind::kLocal},
    {0x58465342, "xfs", DiskKind::kLocal},       {0x9123683E, "btrfs", DiskKind::kLocal},
    {0x2FC12FC1, "zfs", DiskKind::kLocal},       {0xF2F52010, "f2fs", DiskKind::kLocal},
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Writes up to kProbeBytes within the time, and has them on the platter.
void MeasureWriting(int fd, Disk* disk) {
  const std::string chunk(kChunkBytes, 'd');
  const Clock::time_point start = Clock::now();
  // A disk that is nearly full is not filled up under a job that runs.
  const uint64_t bytes_max = std::min(kProbeBytes, disk->bytes_free / kShareOfRoom);
  while (disk->bytes_written < bytes_max && Clock::now() - start < kWriteTimeMax) {
    const ssize_t wrote = write(fd, chunk.data(), chunk.size());
    if (wrote <= 0) {
      disk->write_error = strerror(wrote == 0 ? ENOSPC : errno);
      return;
    }
    disk->bytes_written += static_cast<uint64_t>(wrote);
  }
  if (fsync(fd) != 0) disk->write_error = strerror(errno);
  disk->write_seconds = SecondsSince(start);
}

void MeasureSyncs(int fd, Disk* disk) {
  std::vector<double> seconds;
  const Clock::time_point start = Clock::now();
  while (seconds.size() < kSyncsMax && Clock::now() - start < kSyncTimeMax) {
    const Clock::time_point one = Clock::now();
    if (pwrite(fd, "sync", 4, static_cast<off_t>(seconds.size()) * 4096) != 4) break;
    if (fsync(fd) != 0) break;
    seconds.push_back(SecondsSince(one));
  }
  if (seconds.empty()) return;
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  disk->sync_seconds = seconds[seconds.size() / 2];
}

Finding JudgeSpace(const Disk& disk) {
  const std::string seen =
      absl::StrCat(Size(static_cast<double>(disk.bytes_free)), " free in ", disk.folder);
  if (disk.bytes_free < kBytesFreeMin || disk.files_free < kFilesFreeMin) {
    return Problem("disk space",
                   disk.files_free < kFilesFreeMin
                       ? absl::StrCat(seen, ", and room for ", disk.files_free, " files")
                       : seen,
                   "checkpoints and logs do not fit, and a checkpoint that cannot be written is "
                   "not taken",
                   "make room, or choose a --run-dir elsewhere");
  }
  if (disk.bytes_free < kBytesFreeComfortable) {
    return Note("disk space", seen,
                "a checkpoint is about three times the weights, and some are kept",
                "checkpoint.keep in train.cfg says how many");
  }
  return Ok("disk space", seen);
}

Finding JudgeSpeed(const Disk& disk) {
  if (disk.bytes_written == 0) {
    return Ok("disk speed", "not measured: there is no room for it");
  }
  const double rate = static_cast<double>(disk.bytes_written) / std::max(disk.write_seconds, 1e-6);
  const std::string seen =
      absl::StrFormat("%.0f MB/s written, fsync %.1f ms", rate / 1e6, disk.sync_seconds * 1e3);
  if (rate < kSlowBytesPerSecond || disk.sync_seconds > kSlowSyncSeconds) {
    return Note("disk speed", seen,
                "checkpoints take long; training goes on meanwhile, but a stop must fit into "
                "--grace",
                "a faster disk for --run-dir, a larger --grace, or fewer checkpoints "
                "(checkpoint.every_steps)");
  }
  return Ok("disk speed", seen);
}

Finding JudgeKind(const Disk& disk) {
  switch (disk.kind) {
    case DiskKind::kNetwork:
      return Ok("run folder", absl::StrCat(disk.folder, " is on ", disk.file_system),
                "may be shared by nodes; each node is asked to prove it when it joins");
    case DiskKind::kMemory:
      return Note("run folder", absl::StrCat(disk.folder, " is in memory (", disk.file_system, ")"),
                  "checkpoints are lost with the machine, and fill its memory",
                  "--run-dir on a disk");
    case DiskKind::kOverlay:
      return Note("run folder", absl::StrCat(disk.folder, " is in the container's own layer"),
                  "checkpoints are lost with the container", "mount a volume, and --run-dir in it");
    case DiskKind::kLocal:
      return Ok("run folder", absl::StrCat(disk.folder, " is on ", disk.file_system),
                "local: fine for one node and for programs; the built-in trainer over several "
                "nodes needs a folder that all of them share");
  }
  return Ok("run folder", disk.folder);
}

}  // namespace

DiskKind KindOfFileSystem(uint64_t magic, std::string* name) {
  for (const KnownFileSystem& known : kKnown) {
    if (known.magic != (magic & 0xFFFFFFFF)) continue;
    *name = known.name;
    return known.kind;
  }
  *name = absl::StrFormat("a file system of type 0x%x", magic);
  return DiskKind::kLocal;
}

std::vector<Finding> JudgeDisk(const Disk& disk) {
  if (!disk.write_error.empty()) {
    return {Problem("run folder", absl::StrCat(disk.folder, ": ", disk.write_error),
                    "no job can be started there",
                    "choose a --run-dir that can be written, or make room")};
  }
  std::vector<Finding> findings = {JudgeKind(disk), JudgeSpace(disk), JudgeSpeed(disk)};
  if (!disk.lock_error.empty()) {
    findings.push_back(
        Problem("file locks", absl::StrCat("flock fails in ", disk.folder, ": ", disk.lock_error),
                "ddprun cannot tell whether another ddprun uses a run folder, and two would spoil "
                "it",
                "start the NFS lock service (rpc.statd), or mount without nolock; Lustre: -o "
                "flock"));
  }
  return findings;
}

Disk ProbeDisk(const std::string& folder) {
  Disk disk;
  disk.folder = folder;
  struct stat info = {};
  while (stat(disk.folder.c_str(), &info) != 0 && disk.folder != "/" && disk.folder != ".") {
    disk.folder = ParentPath(disk.folder);
  }
  struct statfs system = {};
  struct statvfs space = {};
  if (statfs(disk.folder.c_str(), &system) == 0) {
    disk.kind = KindOfFileSystem(static_cast<uint64_t>(system.f_type), &disk.file_system);
  }
  if (statvfs(disk.folder.c_str(), &space) == 0) {
    disk.bytes_free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
    // Some file systems count no files.
    if (space.f_files > 0) disk.files_free = space.f_favail;
  }
  const std::string path = JoinPath(disk.folder, absl::StrCat(".ddprun-doctor-", getpid()));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    disk.write_error = strerror(errno);
    return disk;
  }
  // The name goes at once: whatever happens to us, nothing is left. Network file systems keep the
  // file under another name until it is closed.
  unlink(path.c_str());
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) disk.lock_error = strerror(errno);
  MeasureWriting(fd, &disk);
  if (disk.write_error.empty()) MeasureSyncs(fd, &disk);
  close(fd);
  return disk;
}

Outcome CheckDisk(const World& world) {
  Disk disk = ProbeDisk(world.run_dir);
  disk.folder = net::Shown(disk.folder);
  return {JudgeDisk(disk), {{"file_system", disk.file_system}}};
}

}  // namespace ddprun::doctor
