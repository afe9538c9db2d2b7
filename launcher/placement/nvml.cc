#include "launcher/placement/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ddprun::placement {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr unsigned kDevicesMax = 64;
constexpr unsigned kSlicesMax = 16;  // of one GPU; today's have 7
constexpr unsigned kProcessesMax = 1024;
constexpr unsigned kNodesMax = 1024;  // NUMA
constexpr unsigned kScopeNode = 0;
constexpr size_t kTextBytes = 96;
constexpr uint64_t kNotAvailable = ~uint64_t{0};

// Types of NVML's binary interface (stable since driver 450; see NVIDIA's NVML API reference).
using Handle = void*;
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> bus_id;
};
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {  // since nvmlDeviceGetComputeRunningProcesses_v2
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

struct Nvml::Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Handle*) = nullptr;
  int (*by_uuid)(const char*, Handle*) = nullptr;
  int (*uuid)(Handle, char*, unsigned) = nullptr;
  int (*name)(Handle, char*, unsigned) = nullptr;
  int (*pci)(Handle, PciInfo*) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  // Not in every version.
  int (*processes)(Handle, unsigned*, ProcessInfo*) = nullptr;
  int (*memory_affinity)(Handle, unsigned, unsigned long*, unsigned) = nullptr;
  int (*mig_mode)(Handle, unsigned*, unsigned*) = nullptr;
  int (*mig_count)(Handle, unsigned*) = nullptr;
  int (*mig_by_index)(Handle, unsigned, Handle*) = nullptr;

  bool Load(void* library) {
    if (!Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &processes)) {
      Find(library, "nvmlDeviceGetComputeRunningProcesses_v2", &processes);
    }
    Find(library, "nvmlDeviceGetMemoryAffinity", &memory_affinity);
    Find(library, "nvmlDeviceGetMigMode", &mig_mode);
    Find(library, "nvmlDeviceGetMaxMigDeviceCount", &mig_count);
    Find(library, "nvmlDeviceGetMigDeviceHandleByIndex", &mig_by_index);
    return Find(library, "nvmlInit_v2", &init) && Find(library, "nvmlShutdown", &shutdown) &&
           Find(library, "nvmlErrorString", &error_text) &&
           Find(library, "nvmlSystemGetDriverVersion", &driver_version) &&
           Find(library, "nvmlDeviceGetCount_v2", &count) &&
           Find(library, "nvmlDeviceGetHandleByIndex_v2", &by_index) &&
           Find(library, "nvmlDeviceGetHandleByUUID", &by_uuid) &&
           Find(library, "nvmlDeviceGetUUID", &uuid) && Find(library, "nvmlDeviceGetName", &name) &&
           Find(library, "nvmlDeviceGetPciInfo_v3", &pci) &&
           Find(library, "nvmlDeviceGetMemoryInfo", &memory);
  }

  // What is the same for a GPU and a MIG instance.
  NvmlDevice Describe(Handle device) const {
    NvmlDevice described;
    std::array<char, kTextBytes> text = {};
    if (uuid(device, text.data(), text.size()) == 0) described.uuid = text.data();
    if (name(device, text.data(), text.size()) == 0) described.name = text.data();
    Memory bytes = {};
    if (memory(device, &bytes) == 0) described.memory_bytes = bytes.total;
    return described;
  }

  std::vector<NvmlDevice> SlicesOf(Handle gpu) const {
    std::vector<NvmlDevice> slices;
    unsigned current = 0, pending = 0, most = 0;
    if (mig_mode == nullptr || mig_count == nullptr || mig_by_index == nullptr) return slices;
    if (mig_mode(gpu, &current, &pending) != 0 || current == 0) return slices;
    if (mig_count(gpu, &most) != 0) return slices;
    for (unsigned i = 0; i < std::min(most, kSlicesMax); ++i) {
      Handle slice = nullptr;
      if (mig_by_index(gpu, i, &slice) == 0) slices.push_back(Describe(slice));
    }
    return slices;
  }

  int NodeNextTo(Handle gpu) const {
    constexpr unsigned kWordBits = 8 * sizeof(unsigned long);
    std::array<unsigned long, kNodesMax / kWordBits> nodes = {};
    if (memory_affinity == nullptr ||
        memory_affinity(gpu, nodes.size(), nodes.data(), kScopeNode) != 0) {
      return -1;
    }
    int next_to = -1;
    for (unsigned node = 0; node < kNodesMax; ++node) {
      if ((nodes[node / kWordBits] >> (node % kWordBits) & 1) == 0) continue;
      if (next_to >= 0) return -1;  // next to several: it does not know
      next_to = static_cast<int>(node);
    }
    return next_to;
  }
};

std::unique_ptr<Nvml> Nvml::Open(std::string* why) {
  std::string ignored;
  std::string& reason = why != nullptr ? *why : ignored;
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reason = absl::StrCat("there is no ", kLibrary);
    return nullptr;
  }
  auto functions = std::make_unique<Functions>();
  if (!functions->Load(library)) {
    reason = absl::StrCat(kLibrary, " is too old (driver 450 or newer is needed)");
    dlclose(library);
    return nullptr;
  }
  const int error = functions->init();
  if (error != 0) {
    reason = absl::StrCat(kLibrary, ": ", functions->error_text(error));
    dlclose(library);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(library, std::move(functions)));
}

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions)
    : library_(library), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
  dlclose(library_);
}

std::string Nvml::DriverVersion() const {
  std::array<char, kTextBytes> text = {};
  return functions_->driver_version(text.data(), text.size()) == 0 ? text.data() : "";
}

std::vector<NvmlDevice> Nvml::Devices() const {
  std::vector<NvmlDevice> devices;
  unsigned count = 0;
  if (functions_->count(&count) != 0) return devices;
  for (unsigned i = 0; i < std::min(count, kDevicesMax); ++i) {
    Handle handle = nullptr;
    if (functions_->by_index(i, &handle) != 0) continue;
    NvmlDevice device = functions_->Describe(handle);
    PciInfo pci = {};
    if (functions_->pci(handle, &pci) == 0) {
      // "00000000:3B:00.0"; the kernel's domains have four digits.
      const std::string text = absl::AsciiStrToLower(pci.bus_id.data());
      device.bus_id = text.size() == 16 ? text.substr(4) : text;
    }
    device.memory_node = functions_->NodeNextTo(handle);
    device.slices = functions_->SlicesOf(handle);
    devices.push_back(std::move(device));
  }
  return devices;
}

std::optional<GpuMemory> Nvml::MemoryOf(const std::string& uuid) const {
  Handle handle = nullptr;
  Memory bytes = {};
  if (functions_->by_uuid(uuid.c_str(), &handle) != 0 || functions_->memory(handle, &bytes) != 0) {
    return std::nullopt;
  }
  GpuMemory memory;
  memory.used_bytes = bytes.used;
  if (functions_->processes == nullptr) return memory;
  std::vector<ProcessInfo> found(kProcessesMax);
  unsigned count = kProcessesMax;
  if (functions_->processes(handle, &count, found.data()) != 0) return memory;
  for (unsigned i = 0; i < std::min(count, kProcessesMax); ++i) {
    memory.processes.push_back({found[i].pid, found[i].used == kNotAvailable ? 0 : found[i].used});
  }
  return memory;
}

}  // namespace ddprun::placement
