// libFuzzer target: manifest.json of a checkpoint.
#include <cstdint>
#include <cstdlib>

#include "common/checkpoint_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const auto manifest = ParseManifest(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!manifest.ok()) {
    if (manifest.status().message().empty()) std::abort();
    return 0;
  }
  for (const ManifestFile& file : manifest->files) {
    if (file.name.find('/') != std::string::npos) std::abort();
  }
  return 0;
}
