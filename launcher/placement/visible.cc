#include "launcher/placement/visible.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ddprun::placement {
namespace {

VisibleDevice WholeGpu(const GpuList& list, size_t gpu, const std::string& token) {
  const Gpu& g = list.gpus[gpu];
  if (!g.slices.empty()) return {g.slices[0], g.slices[0], static_cast<int>(gpu), true};
  return {token, g.uuid, static_cast<int>(gpu), false};
}

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// By UUID or the beginning of one. Empty: there is none, or several begin so.
std::optional<VisibleDevice> FindByUuid(const GpuList& list, const std::string& text) {
  std::vector<VisibleDevice> found;
  bool all_known = true;
  for (size_t i = 0; i < list.gpus.size(); ++i) {
    const Gpu& gpu = list.gpus[i];
    all_known = all_known && !gpu.uuid.empty();
    if (absl::StartsWith(gpu.uuid, text)) found.push_back(WholeGpu(list, i, gpu.uuid));
    for (const std::string& slice : gpu.slices) {
      if (absl::StartsWith(slice, text)) {
        found.push_back({slice, slice, static_cast<int>(i), true});
      }
    }
  }
  if (found.size() == 1) return found[0];
  if (!found.empty()) return std::nullopt;
  // Older names of MIG instances ("MIG-GPU-<uuid>/<gi>/<ci>"), and machines that tell no UUIDs.
  if (absl::StartsWith(text, "MIG-GPU-") || !all_known) {
    return VisibleDevice{text, "", -1, absl::StartsWith(text, "MIG-")};
  }
  return std::nullopt;
}

std::optional<VisibleDevice> FindEntry(const GpuList& list, const std::string& text) {
  if (IsNumber(text)) {
    size_t index = 0;
    if (!absl::SimpleAtoi(text, &index) || index >= list.gpus.size()) return std::nullopt;
    return WholeGpu(list, index, text);
  }
  if (absl::StartsWith(text, "GPU-") || absl::StartsWith(text, "MIG-")) {
    return FindByUuid(list, text);
  }
  return std::nullopt;
}

std::string ListText(const GpuList& list, const std::vector<VisibleDevice>& devices) {
  std::vector<std::string> names;
  for (size_t i = 0; i < devices.size(); ++i) {
    const VisibleDevice& d = devices[i];
    const std::string name = d.gpu < 0 || d.slice ? d.token : NameOfGpu(list, d.gpu);
    names.push_back(absl::StrCat(i, " is ", name));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::Status NotVisible(const GpuList& list, const std::optional<std::string>& variable,
                        const std::vector<VisibleDevice>& visible,
                        const std::vector<std::string>& wished, const std::string& missing) {
  const std::string first = absl::StrCat("--gpus ", absl::StrJoin(wished, ","), ": ");
  const std::string seen = ListText(list, visible);
  if (variable) {
    return absl::InvalidArgumentError(
        absl::StrCat(first, missing, " is not among what CUDA_VISIBLE_DEVICES=", *variable,
                     " shows (", seen, "); choose among those, or unset CUDA_VISIBLE_DEVICES"));
  }
  return absl::InvalidArgumentError(absl::StrCat(first, "there is no GPU ", missing,
                                                 "; usable: ", seen, " (", list.looked_at,
                                                 ", CUDA_VISIBLE_DEVICES is not set)"));
}

}  // namespace

std::vector<VisibleDevice> VisibleDevices(const GpuList& list,
                                          const std::optional<std::string>& variable) {
  std::vector<VisibleDevice> devices;
  if (!variable) {
    for (size_t i = 0; i < list.gpus.size(); ++i) {
      devices.push_back(WholeGpu(list, i, absl::StrCat(i)));
    }
    return devices;
  }
  std::set<std::string> seen;
  for (absl::string_view entry : absl::StrSplit(*variable, ',')) {
    std::optional<VisibleDevice> device =
        FindEntry(list, std::string(absl::StripAsciiWhitespace(entry)));
    if (!device) break;
    const std::string identity = !device->uuid.empty() ? device->uuid : device->token;
    if (!seen.insert(identity).second) return {};
    devices.push_back(*std::move(device));
  }
  return devices;
}

absl::StatusOr<std::vector<VisibleDevice>> ChooseDevices(const GpuList& list,
                                                         const std::optional<std::string>& variable,
                                                         const std::vector<std::string>& wished) {
  std::vector<VisibleDevice> visible = VisibleDevices(list, variable);
  if (wished.empty()) return visible;
  std::vector<VisibleDevice> chosen;
  for (const std::string& wish : wished) {
    std::optional<VisibleDevice> device;
    size_t position = 0;
    if (absl::SimpleAtoi(wish, &position) && position < visible.size()) {
      device = visible[position];
    } else if (!IsNumber(wish)) {
      std::optional<VisibleDevice> found = FindEntry(list, wish);
      const auto same = std::find_if(visible.begin(), visible.end(), [&](const VisibleDevice& v) {
        return found && (v.token == found->token || (!v.uuid.empty() && v.uuid == found->uuid));
      });
      if (!variable) {
        device = found;  // also a MIG instance besides the first of its GPU
      } else if (same != visible.end()) {
        device = *same;
      }
    }
    if (!device) return NotVisible(list, variable, visible, wished, wish);
    const bool twice = std::any_of(chosen.begin(), chosen.end(), [&](const VisibleDevice& c) {
      return c.token == device->token || (!c.uuid.empty() && c.uuid == device->uuid);
    });
    if (twice) {
      return absl::InvalidArgumentError(absl::StrCat("--gpus ", absl::StrJoin(wished, ","), ": ",
                                                     wish, " names a GPU for the second time"));
    }
    chosen.push_back(*std::move(device));
  }
  return chosen;
}

bool SameOrder(const GpuList& list, bool bus_order) {
  return bus_order || std::all_of(list.gpus.begin(), list.gpus.end(),
                                  [&](const Gpu& gpu) { return gpu.name == list.gpus[0].name; });
}

std::string VisibleVariable(const GpuList& list, const std::vector<VisibleDevice>& devices,
                            bool bus_order) {
  const bool numbers = std::all_of(devices.begin(), devices.end(),
                                   [](const VisibleDevice& d) { return IsNumber(d.token); });
  const bool uuids_known = std::all_of(devices.begin(), devices.end(),
                                       [](const VisibleDevice& d) { return !d.uuid.empty(); });
  const bool by_uuid = uuids_known && (!numbers || !SameOrder(list, bus_order));
  return absl::StrJoin(devices, ",", [by_uuid](std::string* out, const VisibleDevice& device) {
    out->append(by_uuid ? device.uuid : device.token);
  });
}

}  // namespace ddprun::placement
