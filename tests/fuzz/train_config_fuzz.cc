// libFuzzer target: train.cfg and its resolved form.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/config/train_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ParseTrainConfig(text, "train.cfg", {});
  if (config.ok()) {
    // What was accepted survives the way to the worker.
    const auto again = FromJson(ToJson(*config));
    if (!again.ok() || !(*again == *config)) std::abort();
  } else if (config.status().message().empty()) {
    std::abort();
  }
  // An override as a user may type it, and JSON as a worker may find it.
  ParseTrainConfig("", "train.cfg", {std::string(text)}).IgnoreError();
  FromJson(text).IgnoreError();
  return 0;
}
