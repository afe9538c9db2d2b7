#include "worker/trainer/device_name.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/comm/communicator.h"
#include "worker/trainer/gather.h"

namespace ddprun {
namespace {

std::string ProcessorName() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "a processor without a name";
}

}  // namespace

std::string DeviceName(const at::Device& device) {
  if (device.is_cuda()) return GpuName(static_cast<unsigned char>(device.index()));
  return absl::StrCat(ProcessorName(), ", ", at::get_num_threads(),
                      at::get_num_threads() == 1 ? " thread" : " threads");
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "an unknown host";
}

std::string MixedDevices(const std::vector<std::string>& names,
                         const std::vector<std::string>& hosts) {
  const auto other = [&](const std::string& name) { return name != names[0]; };
  if (std::none_of(names.begin(), names.end(), other)) return "";
  std::string text = "not all ranks compute on the same: ";
  const char* separator = "";
  for (const RankGroup& group : GroupRanks(names, hosts)) {
    absl::StrAppend(&text, separator, RankList(group.ranks), " on ", group.host, ": ", group.text);
    separator = "; ";
  }
  return absl::StrCat(
      text,
      ". In every step all wait for the slowest, and a run on other devices does not "
      "give the same bits");
}

}  // namespace ddprun
