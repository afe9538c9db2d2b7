#include "common/worker_versions.h"

#include <fstream>

namespace ddprun {
namespace {

constexpr size_t kVersionsMax = 16;
constexpr size_t kVersionBytesMax = 64;

}  // namespace

std::map<std::string, std::string> ReadWorkerVersions(const std::string& worker_path) {
  std::map<std::string, std::string> versions;
  std::ifstream file(worker_path + ".versions");
  std::string line;
  while (versions.size() < kVersionsMax && std::getline(file, line)) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0 || line.size() > kVersionBytesMax) continue;
    versions[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return versions;
}

}  // namespace ddprun
