#define _POSIX_C_SOURCE 200809L
#include "worker/client/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/client/ddprun.h"

enum { kErrorBytes = 1024 };  // a path and a sentence; longer text is cut

static _Thread_local char error_text[kErrorBytes];

const char* ddprun_error(const ddprun_handle* handle) {
  (void)handle;  // the text also outlives an init that failed, when there is no handle
  return error_text;
}

// The arguments may point into error_text itself (a caller that quotes the last error).
static void format_error(const char* format, va_list arguments) {
  char text[kErrorBytes];
  vsnprintf(text, sizeof text, format, arguments);
  memcpy(error_text, text, strlen(text) + 1);
}

int ddprun_set_error(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  format_error(format, arguments);
  va_end(arguments);
  return code;
}

int ddprun_set_errno(int code, int error_number, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  format_error(format, arguments);
  va_end(arguments);
  const size_t used = strlen(error_text);
  char reason[128] = "";
  if (strerror_r(error_number, reason, sizeof reason) != 0) {
    snprintf(reason, sizeof reason, "error %d", error_number);
  }
  snprintf(error_text + used, kErrorBytes - used, ": %s", reason);
  return code;
}
