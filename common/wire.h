// Text encoding of the worker protocol (proto/worker_protocol.md), in C so that libddprun and the
// static keeper share it. Pure functions, thread-safe, no allocation.
#ifndef DDPRUN_COMMON_WIRE_H_
#define DDPRUN_COMMON_WIRE_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Largest packet in bytes, and largest published value before base64.
enum { kDdprunPacketBytesMax = 65536, kDdprunValueBytesMax = 32768 };

// Writes the escaped form of text[0..size) to out (not terminated) and returns its length, or
// (size_t)-1 when capacity is too small. `\`, LF and CR are escaped.
size_t ddprun_wire_escape(const char* text, size_t size, char* out, size_t capacity);

// The inverse. Unknown escapes keep the character after the backslash.
size_t ddprun_wire_unescape(const char* text, size_t size, char* out, size_t capacity);

// Base64 as in RFC 4648 with padding. Both return the length written or (size_t)-1 (too small, or
// for decode: not valid base64).
size_t ddprun_wire_base64_encode(const void* data, size_t size, char* out, size_t capacity);
size_t ddprun_wire_base64_decode(const char* text, size_t size, void* out, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif  // DDPRUN_COMMON_WIRE_H_
