#define _POSIX_C_SOURCE 200809L
#include "worker/client/packet.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append(struct ddprun_packet* packet, const char* text, size_t size) {
  if (packet->overflow || packet->capacity - packet->size < size) {
    packet->overflow = 1;
    return;
  }
  memcpy(packet->data + packet->size, text, size);
  packet->size += size;
}

static void append_key(struct ddprun_packet* packet, const char* key) {
  append(packet, key, strlen(key));
  append(packet, "=", 1);
}

// Takes note of what an encoder wrote behind packet->size.
static void appended(struct ddprun_packet* packet, size_t size) {
  if (size == (size_t)-1) {
    packet->overflow = 1;
  } else {
    packet->size += size;
  }
}

void ddprun_packet_begin(struct ddprun_packet* packet, char* buffer, size_t capacity,
                         const char* type) {
  packet->data = buffer;
  packet->capacity = capacity;
  packet->size = 0;
  packet->overflow = 0;
  ddprun_packet_text(packet, "TYPE", type);
}

void ddprun_packet_text(struct ddprun_packet* packet, const char* key, const char* value) {
  append_key(packet, key);
  if (packet->overflow) return;
  appended(packet, ddprun_wire_escape(value, strlen(value), packet->data + packet->size,
                                      packet->capacity - packet->size));
  append(packet, "\n", 1);
}

void ddprun_packet_int(struct ddprun_packet* packet, const char* key, int64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, value);
  ddprun_packet_text(packet, key, text);
}

void ddprun_packet_double(struct ddprun_packet* packet, const char* key, double value) {
  char text[40];
  const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  const locale_t previous = plain ? uselocale(plain) : (locale_t)0;
  snprintf(text, sizeof text, "%.17g", value);
  if (plain) {
    uselocale(previous);
    freelocale(plain);
  }
  ddprun_packet_text(packet, key, text);
}

void ddprun_packet_base64(struct ddprun_packet* packet, const char* key, const void* data,
                          size_t size) {
  append_key(packet, key);
  if (packet->overflow) return;
  appended(packet, ddprun_wire_base64_encode(data, size, packet->data + packet->size,
                                             packet->capacity - packet->size));
  append(packet, "\n", 1);
}

int ddprun_packet_parse(char* data, size_t size, struct ddprun_fields* fields) {
  fields->count = 0;
  char* const end = data + size;
  for (char* line = data; line < end;) {
    char* const line_end = memchr(line, '\n', (size_t)(end - line));
    if (line_end == NULL || fields->count == kDdprunFieldsMax) return -1;
    char* const equals = memchr(line, '=', (size_t)(line_end - line));
    if (equals == NULL) return -1;
    *equals = '\0';
    struct ddprun_field* const field = &fields->at[fields->count++];
    field->key = line;
    field->value = equals + 1;
    field->size = ddprun_wire_unescape(field->value, (size_t)(line_end - field->value),
                                       field->value, (size_t)(line_end - field->value));
    field->value[field->size] = '\0';  // at most where the line feed stood
    line = line_end + 1;
  }
  return fields->count > 0 && strcmp(fields->at[0].key, "TYPE") == 0 ? 0 : -1;
}

const struct ddprun_field* ddprun_packet_find(const struct ddprun_fields* fields, const char* key) {
  for (int i = 0; i < fields->count; ++i) {
    if (strcmp(fields->at[i].key, key) == 0) return &fields->at[i];
  }
  return NULL;
}

int ddprun_packet_find_int(const struct ddprun_fields* fields, const char* key, int64_t* value) {
  const struct ddprun_field* const field = ddprun_packet_find(fields, key);
  return field == NULL ? -1 : ddprun_parse_int(field->value, value);
}

int ddprun_parse_int(const char* text, int64_t* value) {
  char* end = NULL;
  if ((*text < '0' || *text > '9') && *text != '-') return -1;
  errno = 0;
  const long long parsed = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0') return -1;
  *value = parsed;
  return 0;
}
