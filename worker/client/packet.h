// Packets of the worker protocol (proto/worker_protocol.md): lines KEY=VALUE in one buffer. Pure
// functions on memory of the caller, so any thread may use its own packet. A packet that does not
// fit is marked as overflowed and is never sent in part.
#ifndef DDPRUN_WORKER_CLIENT_PACKET_H_
#define DDPRUN_WORKER_CLIENT_PACKET_H_

#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"

struct ddprun_packet {
  char* data;
  size_t capacity;
  size_t size;
  int overflow;
};

void ddprun_packet_begin(struct ddprun_packet* packet, char* buffer, size_t capacity,
                         const char* type);
void ddprun_packet_text(struct ddprun_packet* packet, const char* key, const char* value);
void ddprun_packet_int(struct ddprun_packet* packet, const char* key, int64_t value);
// Shortest of %.17g with a point, whatever the program's locale is.
void ddprun_packet_double(struct ddprun_packet* packet, const char* key, double value);
void ddprun_packet_base64(struct ddprun_packet* packet, const char* key, const void* data,
                          size_t size);

enum { kDdprunFieldsMax = 32 };  // a packet with more lines is void; version 1 uses at most five

struct ddprun_field {
  const char* key;
  char* value;  // unescaped, zero-terminated
  size_t size;
};
struct ddprun_fields {
  struct ddprun_field at[kDdprunFieldsMax];
  int count;
};

// Splits data[0..size) in place. Returns 0, or -1 when it is not a packet.
int ddprun_packet_parse(char* data, size_t size, struct ddprun_fields* fields);
// NULL when the key is missing.
const struct ddprun_field* ddprun_packet_find(const struct ddprun_fields* fields, const char* key);
// Returns 0, or -1 when the key is missing or is no decimal integer.
int ddprun_packet_find_int(const struct ddprun_fields* fields, const char* key, int64_t* value);
// A whole decimal integer; returns 0 or -1.
int ddprun_parse_int(const char* text, int64_t* value);

#endif  // DDPRUN_WORKER_CLIENT_PACKET_H_
