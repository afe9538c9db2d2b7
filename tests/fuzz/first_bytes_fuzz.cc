// libFuzzer target: the first bytes of strangers, what a server says goodbye with, and how text
// from outside is shown.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "launcher/net/first_bytes.h"
#include "launcher/net/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun::net;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  // What is decided stays decided, however much more comes.
  const Speech speech = Recognise(bytes);
  for (size_t shorter = 1; shorter < size && shorter <= kFirstBytesMax; ++shorter) {
    const Speech early = Recognise(bytes.substr(0, shorter));
    if (early != Speech::kUndecided && early != speech) std::abort();
  }
  GoodbyeOf(bytes);
  if (GoodbyeOf(Http2Goodbye(bytes.substr(0, 1000))) != bytes.substr(0, 1000)) std::abort();
  for (const char c : Shown(bytes)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) std::abort();
  }
  return 0;
}
