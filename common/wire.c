#include "common/wire.h"

#include <stdint.h>
#include <string.h>

static const char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const size_t kNoRoom = (size_t)-1;

size_t ddprun_wire_escape(const char* text, size_t size, char* out, size_t capacity) {
  size_t used = 0;
  for (size_t i = 0; i < size; ++i) {
    const char c = text[i];
    const char code = c == '\\' ? '\\' : c == '\n' ? 'n' : c == '\r' ? 'r' : 0;
    if (capacity - used < (code ? 2u : 1u)) return kNoRoom;
    if (code) {
      out[used++] = '\\';
      out[used++] = code;
    } else {
      out[used++] = c;
    }
  }
  return used;
}

size_t ddprun_wire_unescape(const char* text, size_t size, char* out, size_t capacity) {
  size_t used = 0;
  for (size_t i = 0; i < size; ++i) {
    char c = text[i];
    // A backslash at the very end has nothing to escape and stands for itself.
    if (c == '\\' && i + 1 < size) {
      c = text[++i];
      c = (char)(c == 'n' ? '\n' : c == 'r' ? '\r' : c);
    }
    if (used == capacity) return kNoRoom;
    out[used++] = c;
  }
  return used;
}

size_t ddprun_wire_base64_encode(const void* data, size_t size, char* out, size_t capacity) {
  if (size > (SIZE_MAX - 4) / 4 * 3 || capacity < (size + 2) / 3 * 4) return kNoRoom;
  const unsigned char* in = data;
  size_t used = 0;
  for (size_t i = 0; i < size; i += 3) {
    const size_t left = size - i;
    const uint32_t bits = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                          (left > 2 ? (uint32_t)in[i + 2] : 0);
    out[used++] = kAlphabet[bits >> 18];
    out[used++] = kAlphabet[bits >> 12 & 63];
    out[used++] = left > 1 ? kAlphabet[bits >> 6 & 63] : '=';
    out[used++] = left > 2 ? kAlphabet[bits & 63] : '=';
  }
  return used;
}

// The value of one base64 digit, or -1.
static int digit_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

size_t ddprun_wire_base64_decode(const char* text, size_t size, void* out, size_t capacity) {
  if (size % 4 != 0) return kNoRoom;
  unsigned char* bytes = out;
  size_t used = 0;
  for (size_t i = 0; i < size; i += 4) {
    size_t digits = 4;  // of this group; only the last group may be padded
    if (i + 4 == size && text[i + 3] == '=') digits = text[i + 2] == '=' ? 2 : 3;
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int value = k < digits ? digit_value(text[i + k]) : 0;
      if (value < 0) return kNoRoom;
      bits = bits << 6 | (uint32_t)value;
    }
    // Bits that no byte takes must be zero: one text for one value.
    if (digits < 4 && (bits & (digits == 3 ? 0xffu : 0xffffu)) != 0) return kNoRoom;
    if (capacity - used < digits - 1) return kNoRoom;
    for (size_t k = 0; k + 1 < digits; ++k) bytes[used++] = (unsigned char)(bits >> (16 - 8 * k));
  }
  return used;
}
