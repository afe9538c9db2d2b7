// A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU. ddprun finds it as it
// finds the real one: through the loader, here by LD_LIBRARY_PATH. What it answers stands in the
// file that DDPRUN_FAKE_NVML names, read anew at every call:
//   gpu UUID BUS_ID NUMA_NODE MODEL    begins a GPU (NUMA_NODE -1: not supported, -2: all of two)
//   mig UUID                           an instance of it
//   used BYTES                         of the GPU's memory
//   process PID BYTES                  that holds some of it
//   hang                               whoever asks for the memory in use waits for ever
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kInvalid = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kNoDriver = 9;
constexpr unsigned long long kTotalBytes = 141ULL << 30;

struct Process {
  unsigned pid;
  unsigned long long bytes;
};
struct Gpu {
  std::string uuid, bus_id, model;
  int node = -1;
  unsigned long long used = 0;
  bool hangs = false;
  std::vector<std::string> slices;
  std::vector<Process> processes;
};

// A handle is 1 + GPU × 100 + slice (0: the whole GPU).
constexpr size_t kSlicesEnd = 100;

std::vector<Gpu> Read() {
  std::vector<Gpu> gpus;
  const char* path = std::getenv("DDPRUN_FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "gpu") {
      Gpu gpu;
      words >> gpu.uuid >> gpu.bus_id >> gpu.node >> gpu.model;
      gpus.push_back(gpu);
    } else if (!gpus.empty() && word == "mig") {
      gpus.back().slices.emplace_back();
      words >> gpus.back().slices.back();
    } else if (!gpus.empty() && word == "used") {
      words >> gpus.back().used;
    } else if (!gpus.empty() && word == "hang") {
      gpus.back().hangs = true;
    } else if (!gpus.empty() && word == "process") {
      Process process = {};
      words >> process.pid >> process.bytes;
      gpus.back().processes.push_back(process);
    }
  }
  return gpus;
}

void* HandleOf(size_t gpu, size_t slice) {
  return reinterpret_cast<void*>(1 + gpu * kSlicesEnd + slice);
}

bool Find(void* handle, Gpu* gpu, size_t* slice) {
  const std::vector<Gpu> gpus = Read();
  const size_t number = reinterpret_cast<size_t>(handle) - 1;
  if (number / kSlicesEnd >= gpus.size()) return false;
  *gpu = gpus[number / kSlicesEnd];
  *slice = number % kSlicesEnd;
  return *slice <= gpu->slices.size();
}

int Copy(const std::string& text, char* to, unsigned length) {
  std::snprintf(to, length, "%s", text.c_str());
  return 0;
}

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {
int nvmlInit_v2() {
  return Read().empty() ? kNoDriver : 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int error) {
  return error == kNoDriver ? "Driver Not Loaded" : "Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return Copy("580.00", text, length);
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(Read().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = HandleOf(index, 0);
  return index < Read().size() ? 0 : kInvalid;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  const std::vector<Gpu> gpus = Read();
  for (size_t i = 0; i < gpus.size(); ++i) {
    *handle = HandleOf(i, 0);
    if (gpus[i].uuid == uuid) return 0;
    for (size_t k = 0; k < gpus[i].slices.size(); ++k) {
      *handle = HandleOf(i, k + 1);
      if (gpus[i].slices[k] == uuid) return 0;
    }
  }
  return kNotFound;
}
int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  return Copy(slice == 0 ? gpu.uuid : gpu.slices[slice - 1], text, length);
}
int nvmlDeviceGetName(void* handle, char* text, unsigned length) {
  Gpu gpu;
  size_t slice = 0;
  return Find(handle, &gpu, &slice) ? Copy(gpu.model, text, length) : kInvalid;
}
int nvmlDeviceGetPciInfo_v3(void* handle, PciInfo* info) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  std::memset(info, 0, sizeof *info);
  return Copy(gpu.bus_id, info->bus_id, sizeof info->bus_id);
}
int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  while (gpu.hangs) pause();
  *memory = {kTotalBytes, kTotalBytes - gpu.used, gpu.used};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* infos) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  for (size_t i = 0; i < gpu.processes.size(); ++i) {
    infos[i] = {gpu.processes[i].pid, gpu.processes[i].bytes, 0, 0};
  }
  *count = static_cast<unsigned>(gpu.processes.size());
  return 0;
}
int nvmlDeviceGetMemoryAffinity(void* handle, unsigned, unsigned long* nodes, unsigned) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  if (gpu.node == -1) return kNotSupported;
  nodes[0] = gpu.node == -2 ? 3 : 1UL << gpu.node;
  return 0;
}
int nvmlDeviceGetMigMode(void* handle, unsigned* current, unsigned* pending) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  *current = *pending = gpu.slices.empty() ? 0 : 1;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void* handle, unsigned* count) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice)) return kInvalid;
  *count = 7;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* handle, unsigned index, void** instance) {
  Gpu gpu;
  size_t slice = 0;
  if (!Find(handle, &gpu, &slice) || index >= gpu.slices.size()) return kNotFound;
  *instance = reinterpret_cast<void*>(reinterpret_cast<size_t>(handle) + index + 1);
  return 0;
}
}
