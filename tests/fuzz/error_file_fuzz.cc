// libFuzzer target: error files of dead workers.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "launcher/agent/error_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun::agent;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::string problem;
  const auto content = ParseErrorFile(bytes, &problem);
  if (content.has_value() == !problem.empty()) std::abort();
  if (content && (content->message.size() > kErrorMessageBytesMax ||
                  content->traceback.size() > kErrorTracebackBytesMax ||
                  ErrorTimeNs(content->timestamp_seconds, 0) < 0)) {
    std::abort();
  }
  return 0;
}
