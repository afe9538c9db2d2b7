// libFuzzer target: headers of safetensors files.
#include <cstdint>
#include <cstdlib>

#include "common/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const auto header =
      ParseSafetensorsHeader(absl::string_view(reinterpret_cast<const char*>(data), size), size);
  if (!header.ok()) return 0;
  for (const TensorInfo& tensor : header->tensors) {
    if (tensor.begin > tensor.end || header->data_begin + tensor.end > size) std::abort();
  }
  return 0;
}
