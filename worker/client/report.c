// Reports that are one packet each and change nothing in the library.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/client/internal.h"

enum { kResultBytesMax = 1024 };  // of a key or a value: numbers, digests, short words

static int send_plain(ddprun_handle* d, const char* type) {
  char buffer[64];
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, type);
  return ddprun_send(d, &packet, 1);
}

int ddprun_ready(ddprun_handle* handle) {
  const int error = ddprun_usable(handle);
  return error ? error : send_plain(handle, "Ready");
}

int ddprun_finish(ddprun_handle* handle) {
  const int error = ddprun_usable(handle);
  if (error) return error;
  ddprun_edge_finish(handle);
  ddprun_phase(handle, DDPRUN_PHASE_END, NULL);
  return send_plain(handle, "Finished");
}

static const char* kind_name(int kind) {
  switch (kind) {
    case DDPRUN_FAIL_ERROR:
      return "error";
    case DDPRUN_FAIL_COMMUNICATION:
      return "communication";
    case DDPRUN_FAIL_CONFIG:
      return "config";
  }
  return NULL;
}

// The end of text, cut to `most` bytes but not inside a character of UTF-8.
static size_t cut(const char* text, size_t most) {
  size_t size = strnlen(text, most + 1);
  if (size <= most) return size;
  size = most;
  while (size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80) --size;
  return size;
}

int ddprun_fail(ddprun_handle* handle, int kind, const char* message) {
  const int error = ddprun_usable(handle);
  if (error) return error;
  const char* const name = kind_name(kind);
  if (name == NULL || message == NULL) {
    return ddprun_set_error(DDPRUN_EINVAL, "ddprun_fail: unknown kind %d, or no message", kind);
  }
  const size_t size = cut(message, kDdprunMessageBytesMax);
  char* const buffer = malloc(size + 1 + kDdprunPacketBytesMax);
  if (buffer == NULL) return ddprun_set_error(DDPRUN_ESIZE, "out of memory");
  memcpy(buffer, message, size);
  buffer[size] = '\0';
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer + size + 1, kDdprunPacketBytesMax, "Failed");
  ddprun_packet_text(&packet, "KIND", name);
  ddprun_packet_text(&packet, "MESSAGE", buffer);
  const int sent = ddprun_send(handle, &packet, 1);
  free(buffer);
  return sent;
}

// FINAL_STEP, WEIGHTS_DIGEST, or METRIC. and a name of [A-Za-z0-9_.]+.
static int is_result_key(const char* key) {
  if (strcmp(key, "FINAL_STEP") == 0 || strcmp(key, "WEIGHTS_DIGEST") == 0) return 1;
  if (strncmp(key, "METRIC.", 7) != 0 || key[7] == '\0') return 0;
  const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
  return key[strspn(key, letters)] == '\0';
}

int ddprun_result(ddprun_handle* handle, const char* key, const char* value) {
  const int error = ddprun_usable(handle);
  if (error) return error;
  if (key == NULL || value == NULL || !is_result_key(key)) {
    return ddprun_set_error(
        DDPRUN_EINVAL, "ddprun_result: '%s' is not FINAL_STEP, WEIGHTS_DIGEST or METRIC.<name>",
        key ? key : "");
  }
  if (strlen(key) > kResultBytesMax || strlen(value) > kResultBytesMax) {
    return ddprun_set_error(DDPRUN_ESIZE, "ddprun_result: key and value have at most %d bytes",
                            kResultBytesMax);
  }
  char buffer[3 * kResultBytesMax + 64];  // the value may double when escaped
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Result");
  ddprun_packet_text(&packet, key, value);
  return ddprun_send(handle, &packet, 1);
}
