// How a handle is made: from plain values, which ddprun_init() takes from the environment and unit
// tests give directly (several handles in one process, a clock of their own).
#ifndef DDPRUN_WORKER_CLIENT_SETTINGS_H_
#define DDPRUN_WORKER_CLIENT_SETTINGS_H_

#include <stdint.h>

#include "worker/client/ddprun.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ddprun_settings {
  int socket_fd;  // -1: by hand, no launcher; else owned by the handle when ddprun_open succeeds
  int page_fd;    // -1: none; stays the caller's, the handle keeps a mapping
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
  int64_t generation;
  int64_t resume_step;
  const char* job_id;
  const char* run_dir;
  const char* state_dir;
  const char* resume_from;  // NULL or "": from scratch
  int64_t (*now_ns)(void);  // NULL: CLOCK_MONOTONIC
};

// Returns 0 or a DDPRUN_E… code; *handle is NULL on error. Strings are copied.
int ddprun_open(const struct ddprun_settings* settings, ddprun_handle** handle);

// For tests: ends the reader thread and frees the handle. REQUIRES: no call is running on it.
void ddprun_close(ddprun_handle* handle);

#ifdef __cplusplus
}
#endif
#endif  // DDPRUN_WORKER_CLIENT_SETTINGS_H_
