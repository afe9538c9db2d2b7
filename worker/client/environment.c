// ddprun_init: the settings of a handle from the environment that the launcher made.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "worker/client/internal.h"

static atomic_int initialized;
// The handle lives as long as the process; leak checkers find it here.
static ddprun_handle* volatile process_handle;

static const char* text_or_empty(const char* name) {
  const char* const text = getenv(name);
  return text ? text : "";
}

// Returns 0, or DDPRUN_EPROTO when the variable is missing or not a number of the range.
static int read_number(const char* name, int64_t low, int64_t high, int64_t* value) {
  const char* const text = text_or_empty(name);
  if (ddprun_parse_int(text, value) == 0 && *value >= low && *value <= high) return 0;
  return ddprun_set_error(DDPRUN_EPROTO,
                          "%s is '%s', expected a number from %" PRId64 " to %" PRId64
                          ": the environment of the launcher was changed",
                          name, text, low, high);
}

static int read_int(const char* name, int64_t low, int64_t high, int* value) {
  int64_t wide = 0;
  const int error = read_number(name, low, high, &wide);
  if (!error) *value = (int)wide;
  return error;
}

static int read_launched(struct ddprun_settings* settings) {
  int error = 0;
  if ((error = read_int("DDPRUN_SOCKET_FD", 0, INT_MAX, &settings->socket_fd)) != 0 ||
      (error = read_int("WORLD_SIZE", 1, INT_MAX, &settings->world_size)) != 0 ||
      (error = read_int("RANK", 0, settings->world_size - 1, &settings->rank)) != 0 ||
      (error = read_int("LOCAL_WORLD_SIZE", 1, INT_MAX, &settings->local_world_size)) != 0 ||
      (error = read_int("LOCAL_RANK", 0, settings->local_world_size - 1, &settings->local_rank)) !=
          0 ||
      (error = read_number("DDPRUN_GENERATION", 1, INT64_MAX, &settings->generation)) != 0) {
    return error;
  }
  if (*text_or_empty("DDPRUN_PAGE_FD")) {
    error = read_int("DDPRUN_PAGE_FD", 0, INT_MAX, &settings->page_fd);
  }
  settings->job_id = text_or_empty("DDPRUN_JOB_ID");
  settings->run_dir = text_or_empty("DDPRUN_RUN_DIR");
  settings->state_dir = text_or_empty("DDPRUN_STATE_DIR");
  settings->resume_from = text_or_empty("DDPRUN_RESUME_FROM");
  if (!error && *settings->resume_from) {
    error = read_number("DDPRUN_RESUME_STEP", 0, INT64_MAX, &settings->resume_step);
  }
  return error;
}

int ddprun_init(ddprun_handle** handle) {
  if (handle == NULL) return ddprun_set_error(DDPRUN_EINVAL, "ddprun_init: handle is NULL");
  *handle = NULL;
  if (atomic_exchange(&initialized, 1)) {
    return ddprun_set_error(DDPRUN_EINVAL, "ddprun_init was called before in this process");
  }
  struct ddprun_settings settings = {.socket_fd = -1,
                                     .page_fd = -1,
                                     .world_size = 1,
                                     .local_world_size = 1,
                                     .generation = 1,
                                     .job_id = "local"};
  int error = *text_or_empty("DDPRUN_SOCKET_FD") ? read_launched(&settings) : 0;
  if (!error) error = ddprun_open(&settings, handle);
  if (error) {
    atomic_store(&initialized, 0);
    return error;
  }
  process_handle = *handle;
  unsetenv("DDPRUN_SOCKET_FD");
  unsetenv("DDPRUN_PAGE_FD");
  return 0;
}
