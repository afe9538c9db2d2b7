#include "launcher/placement/memory_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ddprun::placement {
namespace {

constexpr uint64_t kToleranceBytes = uint64_t{512} << 20;
// The driver keeps some for itself.
constexpr uint64_t kUnattributedBytes = uint64_t{2} << 30;

}  // namespace

MemoryWatch::MemoryWatch(Look look, Alive alive)
    : look_(std::move(look)), alive_(std::move(alive)) {}

std::vector<HeldMemory> MemoryWatch::Remember(const std::vector<std::string>& devices) {
  std::vector<HeldMemory> others;
  before_.clear();
  for (const std::string& uuid : devices) {
    const std::optional<GpuMemory> memory = look_(uuid);
    if (!memory) continue;
    Before& before = before_[uuid];
    before.used_bytes = memory->used_bytes;
    HeldMemory held{uuid, 0, {}};
    for (const ProcessOnGpu& process : memory->processes) {
      before.pids.insert(process.pid);
      held.bytes += process.bytes;
      held.pids.push_back(process.pid);
    }
    if (held.pids.empty()) held.bytes = memory->used_bytes;
    if (held.bytes > (held.pids.empty() ? kUnattributedBytes : kToleranceBytes)) {
      others.push_back(std::move(held));
    }
  }
  return others;
}

std::vector<HeldMemory> MemoryWatch::StillHeld(const std::set<uint32_t>& own) const {
  std::vector<HeldMemory> all;
  for (const auto& [uuid, before] : before_) {
    const std::optional<GpuMemory> memory = look_(uuid);
    if (!memory || memory->used_bytes <= before.used_bytes + kToleranceBytes) continue;
    HeldMemory held{uuid, 0, {}};
    for (const ProcessOnGpu& process : memory->processes) {
      const bool ours =
          own.contains(process.pid) || (!before.pids.contains(process.pid) && !alive_(process.pid));
      if (!ours) continue;
      held.pids.push_back(process.pid);
      held.bytes += process.bytes;
    }
    if (held.pids.empty() && !memory->processes.empty()) continue;
    if (held.bytes == 0) held.bytes = memory->used_bytes - before.used_bytes;
    all.push_back(std::move(held));
  }
  return all;
}

void MemoryWatch::GiveUp(const std::vector<HeldMemory>& held) {
  for (const HeldMemory& one : held) {
    const std::optional<GpuMemory> memory = look_(one.device);
    if (!memory) continue;
    before_[one.device].used_bytes = memory->used_bytes;
    before_[one.device].pids.insert(one.pids.begin(), one.pids.end());
  }
}

std::string DescribeHeld(const std::vector<HeldMemory>& held) {
  constexpr double kGibibyte = 1 << 30;
  return absl::StrJoin(held, ", ", [](std::string* out, const HeldMemory& one) {
    absl::StrAppend(out, absl::StrFormat("%.1f GiB", static_cast<double>(one.bytes) / kGibibyte),
                    " (", one.bytes, " bytes) of ", one.device);
    if (one.pids.empty()) {
      absl::StrAppend(out, " (the driver does not say by whom)");
    } else {
      absl::StrAppend(out, " (pid ", absl::StrJoin(one.pids, ", pid "), ")");
    }
  });
}

}  // namespace ddprun::placement
