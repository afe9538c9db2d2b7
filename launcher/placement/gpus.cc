#include "launcher/placement/gpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::placement {
namespace {

namespace fs = std::filesystem;

constexpr const char* kListed = "/proc/driver/nvidia/gpus";

// "" when it cannot be read: in /proc and /sys that means "not there".
std::string ReadSystemFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> Entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsGpuDevice(const std::string& name) {
  return name.size() > 6 && absl::StartsWith(name, "nvidia") &&
         std::all_of(name.begin() + 6, name.end(), absl::ascii_isdigit);
}

std::string VersionInProc(const std::string& root) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …"
  for (absl::string_view word : absl::StrSplit(ReadSystemFile(root + "/proc/driver/nvidia/version"),
                                               absl::ByAnyChar(" \t\n"))) {
    const bool number = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isdigit(c) || c == '.';
    });
    if (number && absl::StrContains(word, '.')) return std::string(word);
  }
  return "";
}

int NodeNextTo(const std::string& root, const std::string& bus_id) {
  int node = -1;
  const std::string text =
      ReadSystemFile(absl::StrCat(root, "/sys/bus/pci/devices/", bus_id, "/numa_node"));
  return absl::SimpleAtoi(text, &node) ? std::max(node, -1) : -1;
}

// One GPU as the driver describes it in /proc: "GPU UUID: …", "Device Minor: …" and so on.
struct Described {
  Gpu gpu;
  std::string minor;
};

Described ReadInformation(const std::string& root, const std::string& bus_id) {
  Described described;
  described.gpu.bus_id = absl::AsciiStrToLower(bus_id);
  const std::string text = ReadSystemFile(absl::StrCat(root, kListed, "/", bus_id, "/information"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const std::string value(absl::StripAsciiWhitespace(field.second));
    if (field.first == "GPU UUID") described.gpu.uuid = value;
    if (field.first == "Model") described.gpu.name = value;
    if (field.first == "Device Minor") described.minor = value;
  }
  return described;
}

GpuList ListByProc(const std::string& root) {
  GpuList list;
  std::error_code error;
  const bool driver = fs::exists(root + "/proc/driver/nvidia", error);
  std::vector<std::string> devices;
  for (const std::string& name : Entries(root + "/dev")) {
    if (IsGpuDevice(name)) devices.push_back(name);
  }
  std::vector<Described> known;
  for (const std::string& bus_id : Entries(root + kListed)) {
    known.push_back(ReadInformation(root, bus_id));
  }
  list.driver = VersionInProc(root);
  list.looked_at = absl::StrCat(driver ? absl::StrCat(kListed, " lists ", known.size())
                                       : "there is no /proc/driver/nvidia (no driver)",
                                ", there are ", devices.size(), " device files /dev/nvidia<N>");
  // Device files without a driver are left over from an image that was made elsewhere.
  if (!driver) return list;
  // A container sees the device files of its own GPUs, but /proc lists all of the host's.
  for (const Described& described : known) {
    const std::string file = "nvidia" + described.minor;
    if (std::find(devices.begin(), devices.end(), file) != devices.end()) {
      list.gpus.push_back(described.gpu);
    }
  }
  if (list.gpus.size() != devices.size()) list.gpus.assign(devices.size(), Gpu{});
  return list;
}

GpuList ListByNvml(const Nvml& nvml) {
  GpuList list;
  list.driver = nvml.DriverVersion();
  for (const NvmlDevice& device : nvml.Devices()) {
    Gpu gpu{device.uuid, device.bus_id, device.name, device.memory_node, {}};
    for (const NvmlDevice& slice : device.slices) gpu.slices.push_back(slice.uuid);
    list.gpus.push_back(std::move(gpu));
  }
  list.looked_at = absl::StrCat("the driver (NVML) lists ", list.gpus.size());
  return list;
}

}  // namespace

GpuList ListGpus(const std::string& root, const Nvml* nvml, const std::string& why_no_nvml) {
  GpuList list = nvml != nullptr ? ListByNvml(*nvml) : ListByProc(root);
  for (Gpu& gpu : list.gpus) {
    const int node = gpu.bus_id.empty() ? -1 : NodeNextTo(root, gpu.bus_id);
    if (node >= 0) gpu.node = node;
  }
  if (nvml == nullptr && !why_no_nvml.empty()) {
    absl::StrAppend(&list.looked_at, " (", why_no_nvml, ")");
  }
  return list;
}

std::string NameOfGpu(const GpuList& list, int gpu) {
  if (gpu < 0 || static_cast<size_t>(gpu) >= list.gpus.size()) return "GPU ?";
  const std::string& uuid = list.gpus[static_cast<size_t>(gpu)].uuid;
  return absl::StrCat("GPU ", gpu, uuid.empty() ? "" : absl::StrCat(" (", uuid, ")"));
}

}  // namespace ddprun::placement
