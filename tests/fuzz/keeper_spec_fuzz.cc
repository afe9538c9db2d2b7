// libFuzzer target: the spec that a keeper reads.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launcher/keeper/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun::keeper;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string problem;
  const std::optional<Spec> spec = ParseSpec(bytes, &problem);
  if (spec.has_value() == !problem.empty()) std::abort();
  if (!spec) return 0;
  size_t total = 0;
  for (const WorkerSpec& worker : spec->workers) {
    if (worker.arguments.empty() || worker.log == nullptr) std::abort();
    for (const char* text : worker.arguments) total += strlen(text);
    for (const char* text : worker.environment) total += strlen(text);
    if (worker.directory != nullptr) total += strlen(worker.directory);
  }
  if (total > size) std::abort();
  return 0;
}
