// What the fake worker and the tests agree on. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddprun::keeper_test {

// `size` bytes of every value, the same for the same seed (xorshift).
inline std::string RandomBytes(uint64_t seed, size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = seed * 2654435769 + 1;
  for (char& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state >> 32);
  }
  return bytes;
}

}  // namespace ddprun::keeper_test
