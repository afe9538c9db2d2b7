// NVIDIA's management library, opened where it is there (it comes with the driver; nothing of it is
// needed to build or to run without GPUs). It starts no CUDA and takes no GPU memory.
//
// Threads: any, as NVML itself. A handle that could not be got is an empty answer: a GPU that is
// lost or hidden must not keep a job from starting.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::placement {

struct NvmlDevice {
  std::string uuid;    // "GPU-…" or "MIG-…"
  std::string bus_id;  // "0000:3b:00.0", as /sys writes it
  std::string name;
  uint64_t memory_bytes = 0;
  int memory_node = -1;            // NUMA node next to it, where NVML knows
  std::vector<NvmlDevice> slices;  // MIG instances; only uuid, name and memory_bytes are filled
};

struct ProcessOnGpu {
  uint32_t pid = 0;    // as the driver sees it: of the host, not of a container
  uint64_t bytes = 0;  // 0: not known
};

struct GpuMemory {
  uint64_t used_bytes = 0;
  std::vector<ProcessOnGpu> processes;
};

class Nvml {
 public:
  // nullptr: it is not there, or finds no driver; *why (may be null) says which.
  static std::unique_ptr<Nvml> Open(std::string* why);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string DriverVersion() const;
  // In NVML's order, which is that of the bus: as nvidia-smi numbers them.
  std::vector<NvmlDevice> Devices() const;
  // What a device (UUID of a GPU or MIG instance) holds at this moment.
  std::optional<GpuMemory> MemoryOf(const std::string& uuid) const;

 private:
  struct Functions;
  Nvml(void* library, std::unique_ptr<Functions> functions);
  void* library_;
  std::unique_ptr<Functions> functions_;
};

}  // namespace ddprun::placement
