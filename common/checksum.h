// XXH3-128: the checksum of checkpoint files, of the data cache and of the weights digest.
// Text form is 32 lower-case hex digits, high half first (what `xxh128sum` prints).
// Xxh3Stream belongs to one thread; the functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ddprun {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
};

Hash128 Xxh3(const void* data, size_t size);
std::string HashHex(const Hash128& hash);

// The same over several pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;

  void Update(const void* data, size_t size);
  void UpdateU64(uint64_t value);  // eight bytes, little-endian
  Hash128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddprun
