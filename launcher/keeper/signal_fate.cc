#include "launcher/keeper/signal_fate.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/keeper/fd.h"

namespace ddprun::keeper {
namespace {

constexpr size_t kStatusBytesMax = 8192;  // proc(5): some 1,500 bytes

// The mask in the line that begins with `key`.
uint64_t Mask(const std::string& status, std::string_view key) {
  const size_t at = status.find(key);
  return at == std::string::npos ? 0 : strtoull(status.c_str() + at + key.size(), nullptr, 16);
}

}  // namespace

bool Expects(pid_t pid, int signal) {
  const Fd file(open(("/proc/" + std::to_string(pid) + "/status").c_str(), O_RDONLY | O_CLOEXEC));
  std::string status(kStatusBytesMax, '\0');
  const ssize_t size = file.valid() ? read(file.get(), status.data(), status.size()) : 0;
  status.resize(size > 0 ? static_cast<size_t>(size) : 0);
  uint64_t expected = 0;
  for (const char* key : {"\nSigBlk:\t", "\nSigIgn:\t", "\nSigCgt:\t"}) {
    expected |= Mask(status, key);
  }
  return (expected >> (signal - 1) & 1) != 0;
}

}  // namespace ddprun::keeper
