// libFuzzer target: IDX data files, plain and gzipped.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const int fd = memfd_create("idx", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  for (const int dimensions : {1, 3}) {
    const auto array = ReadIdx(path, dimensions);
    if (!array.ok()) continue;
    int64_t elements = 1;
    for (int64_t extent : array->shape) elements *= extent;
    if (elements != static_cast<int64_t>(array->data.size())) std::abort();
  }
  close(fd);
  return 0;
}
