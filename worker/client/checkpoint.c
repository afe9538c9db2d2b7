// One checkpoint at a time: begun, its files written, reported, then settled (committed or dropped)
// by the launcher. A drop may come at any moment, also before this rank begins: then begin fails.
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/client/internal.h"

static int send_step(ddprun_handle* d, const char* type, int64_t step, const char* reason,
                     int patient) {
  char buffer[4 * kDdprunReasonBytes];
  char text[kDdprunReasonBytes];
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, type);
  ddprun_packet_int(&packet, "STEP", step);
  if (reason) {
    snprintf(text, sizeof text, "%s", reason);
    ddprun_packet_text(&packet, "REASON", text);
  }
  return ddprun_send(d, &packet, patient);
}

int ddprun_send_checkpoint_failed(ddprun_handle* d, int64_t step, const char* reason, int patient) {
  return send_step(d, "CheckpointFailed", step, reason, patient);
}

// The functions from here to the reader's REQUIRE that the mutex is held.

static const struct ddprun_outcome* find_outcome(const struct ddprun_checkpoint* c, int64_t step) {
  const unsigned kept =
      c->outcome_count < kDdprunOutcomesMax ? c->outcome_count : (unsigned)kDdprunOutcomesMax;
  for (unsigned i = 0; i < kept; ++i) {
    if (c->outcomes[i].step == step) return &c->outcomes[i];
  }
  return NULL;
}

static int dropped_error(const struct ddprun_outcome* outcome) {
  return ddprun_set_error(DDPRUN_EDROPPED, "the checkpoint of step %" PRId64 " was dropped: %s",
                          outcome->step, outcome->reason);
}

static void set_phase(struct ddprun_checkpoint* c, enum ddprun_checkpoint_phase phase) {
  c->phase = phase;
  atomic_store(&c->in_flight, phase != kDdprunIdle);
  pthread_cond_broadcast(&c->settled);
}

static void settle(struct ddprun_checkpoint* c, int64_t step, int dropped, const char* reason) {
  if (find_outcome(c, step) == NULL) {
    struct ddprun_outcome* const kept = &c->outcomes[c->outcome_count++ % kDdprunOutcomesMax];
    kept->step = step;
    kept->dropped = dropped;
    snprintf(kept->reason, sizeof kept->reason, "%s", reason);
  }
  if (c->phase != kDdprunIdle && c->step == step) set_phase(c, kDdprunIdle);
}

// 0 when this step's files may be written or reported.
static int check_writing(const struct ddprun_checkpoint* c, int64_t step) {
  const struct ddprun_outcome* const outcome = find_outcome(c, step);
  if (outcome && outcome->dropped) return dropped_error(outcome);
  if (c->phase == kDdprunWriting && c->step == step) return 0;
  return ddprun_set_error(DDPRUN_EINVAL, "no checkpoint of step %" PRId64 " is being written",
                          step);
}

void ddprun_checkpoint_committed(ddprun_handle* d, int64_t step) {
  struct ddprun_checkpoint* const c = &d->checkpoint;
  pthread_mutex_lock(&c->mutex);
  // Nothing can be committed that this rank has not reported.
  if (c->phase == kDdprunReported && c->step == step) settle(c, step, 0, "");
  pthread_mutex_unlock(&c->mutex);
}

void ddprun_checkpoint_dropped(ddprun_handle* d, int64_t step, const char* reason) {
  pthread_mutex_lock(&d->checkpoint.mutex);
  settle(&d->checkpoint, step, 1, reason);
  pthread_mutex_unlock(&d->checkpoint.mutex);
}

// Waits for the checkpoint before, and takes the place. "" in dir until the folder is made.
static int reserve(ddprun_handle* d, int64_t step) {
  struct ddprun_checkpoint* const c = &d->checkpoint;
  const struct timespec deadline = ddprun_deadline(kDdprunPreviousSeconds);
  int error = 0;
  pthread_mutex_lock(&c->mutex);
  int late = 0;
  while (c->phase != kDdprunIdle && !late) {
    late = pthread_cond_timedwait(&c->settled, &c->mutex, &deadline) == ETIMEDOUT;
  }
  const struct ddprun_outcome* const outcome = find_outcome(c, step);
  if (c->phase != kDdprunIdle) {
    error = ddprun_set_error(DDPRUN_ETIMEOUT,
                             "the checkpoint of step %" PRId64 " is still in flight after %d s",
                             c->step, kDdprunPreviousSeconds);
  } else if (outcome && outcome->dropped) {
    error = dropped_error(outcome);
  } else if (step < 0 || step <= c->last_begun) {
    error = ddprun_set_error(DDPRUN_EINVAL,
                             "checkpoint of step %" PRId64 " after that of step %" PRId64, step,
                             c->last_begun);
  } else {
    c->step = c->last_begun = step;
    c->file_count = 0;
    c->failed = c->failure_sent = 0;
    c->dir[0] = '\0';
    set_phase(c, kDdprunWriting);
  }
  pthread_mutex_unlock(&c->mutex);
  return error;
}

// Keeps the calling thread's error: a program that overlooks it must not report the checkpoint as
// written.
static void note_failure(ddprun_handle* d) {
  struct ddprun_checkpoint* const c = &d->checkpoint;
  pthread_mutex_lock(&c->mutex);
  if (!c->failed) snprintf(c->failure, sizeof c->failure, "%s", ddprun_error(d));
  c->failed = 1;
  pthread_mutex_unlock(&c->mutex);
}

int ddprun_checkpoint_begin(ddprun_handle* handle, int64_t step) {
  int error = ddprun_usable(handle);
  if (error) return error;
  error = reserve(handle, step);
  // A step that was dropped before this rank came to it is dealt with as well.
  if (!error || error == DDPRUN_EDROPPED) ddprun_edge_begun(handle, step);
  if (error || handle->socket < 0) return error;
  struct ddprun_checkpoint* const c = &handle->checkpoint;
  char leaf[64];
  snprintf(leaf, sizeof leaf, "g%" PRId64 "-step-%" PRId64, handle->generation, step);
  error = ddprun_dir_make(handle->run_dir, leaf, c->dir, sizeof c->dir);
  if (error) {
    c->dir[0] = '\0';
  } else {
    error = send_step(handle, "CheckpointStarted", step, NULL, 1);
  }
  if (error) note_failure(handle);
  return error;  // the step stays in flight until finish or fail says so, and the drop comes
}

const char* ddprun_checkpoint_dir(ddprun_handle* handle) {
  return handle->checkpoint.dir;
}

static int check_name(const char* name) {
  const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  const size_t size = name ? strnlen(name, kDdprunFileNameBytesMax + 1) : 0;
  if (size == 0 || size > kDdprunFileNameBytesMax || strspn(name, letters) != size ||
      name[0] == '.' || strcmp(name, "manifest.json") == 0) {
    return ddprun_set_error(
        DDPRUN_EINVAL,
        "'%s' cannot name a file of a checkpoint: 1 to %d of [A-Za-z0-9._-], no dot "
        "first, not manifest.json",
        name ? name : "", kDdprunFileNameBytesMax);
  }
  return 0;
}

// REQUIRES: the mutex is held.
static int check_file(const struct ddprun_checkpoint* c, int64_t step, const char* name) {
  const int error = check_writing(c, step);
  if (error) return error;
  if (c->file_count == kDdprunFilesMax) {
    return ddprun_set_error(DDPRUN_ESIZE, "%s: a rank writes at most %d files in a checkpoint",
                            name, kDdprunFilesMax);
  }
  for (int i = 0; i < c->file_count; ++i) {
    if (strcmp(c->files[i].name, name) == 0) {
      return ddprun_set_error(DDPRUN_EINVAL, "%s is written already", name);
    }
  }
  return 0;
}

int ddprun_checkpoint_writev(ddprun_handle* handle, int64_t step, const char* name,
                             const ddprun_piece* pieces, size_t count) {
  int error = ddprun_usable(handle);
  if (!error) error = check_name(name);
  if (error) return error;
  for (size_t i = 0; i < count; ++i) {
    if (pieces == NULL || (pieces[i].data == NULL && pieces[i].size > 0)) {
      return ddprun_set_error(DDPRUN_EINVAL, "%s: piece %zu is NULL", name, i);
    }
  }
  struct ddprun_checkpoint* const c = &handle->checkpoint;
  struct ddprun_file file = {.bytes = 0};
  pthread_mutex_lock(&c->mutex);
  error = check_file(c, step, name);
  pthread_mutex_unlock(&c->mutex);
  if (error || handle->socket < 0) return error;
  if (c->dir[0] == '\0') return ddprun_set_error(DDPRUN_EIO, "%s: there is no folder", name);
  error = ddprun_file_write(c->dir, name, handle->rank, pieces, count, &file);
  pthread_mutex_lock(&c->mutex);
  const struct ddprun_outcome* const outcome = find_outcome(c, step);
  if (outcome && outcome->dropped) {
    error = dropped_error(outcome);  // also where the launcher removed the folder meanwhile
  } else if (!error) {
    c->files[c->file_count++] = file;
  }
  pthread_mutex_unlock(&c->mutex);
  if (error == DDPRUN_EIO) note_failure(handle);
  return error;
}

int ddprun_checkpoint_write(ddprun_handle* handle, int64_t step, const char* name, const void* data,
                            size_t size) {
  const ddprun_piece piece = {data, size};
  return ddprun_checkpoint_writev(handle, step, name, &piece, 1);
}

static int send_written(ddprun_handle* d, int64_t step) {
  const struct ddprun_checkpoint* const c = &d->checkpoint;
  const size_t capacity = 256 + kDdprunFilesMax * (sizeof(struct ddprun_file) + 64);
  char* const buffer = malloc(capacity);
  if (buffer == NULL) return ddprun_set_error(DDPRUN_EIO, "out of memory");
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, capacity, "ShardsWritten");
  ddprun_packet_int(&packet, "STEP", step);
  ddprun_packet_int(&packet, "COUNT", c->file_count);
  for (int i = 0; i < c->file_count; ++i) {
    const struct ddprun_file* const file = &c->files[i];
    char key[16];
    char value[kDdprunFileNameBytesMax + 64];
    snprintf(key, sizeof key, "FILE.%d", i);
    snprintf(value, sizeof value, "%s %" PRIu64 " %s", file->name, file->bytes, file->hash);
    ddprun_packet_text(&packet, key, value);
  }
  const int error = ddprun_send(d, &packet, 1);
  free(buffer);
  return error;
}

// Tells the launcher once that this rank cannot, and waits for the drop like any report.
static int send_failure(ddprun_handle* d, int64_t step, const char* reason) {
  struct ddprun_checkpoint* const c = &d->checkpoint;
  ddprun_edge_begun(d, step);
  pthread_mutex_lock(&c->mutex);
  int said = find_outcome(c, step) != NULL;
  if (!said && d->socket < 0) settle(c, step, 1, reason);
  if (!said && (c->phase == kDdprunIdle || c->step == step)) {
    said = c->phase != kDdprunIdle && c->failure_sent;
    c->step = step;
    if (c->last_begun < step) c->last_begun = step;
    c->failure_sent = 1;
    if (d->socket >= 0) set_phase(c, kDdprunReported);
  }
  pthread_mutex_unlock(&c->mutex);
  return said ? 0 : ddprun_send_checkpoint_failed(d, step, reason, 1);
}

int ddprun_checkpoint_finish(ddprun_handle* handle, int64_t step) {
  int error = ddprun_usable(handle);
  if (error) return error;
  struct ddprun_checkpoint* const c = &handle->checkpoint;
  pthread_mutex_lock(&c->mutex);
  error = check_writing(c, step);
  if (!error && handle->socket < 0) settle(c, step, 0, "");
  const int failed = c->failed;
  pthread_mutex_unlock(&c->mutex);
  if (error || handle->socket < 0) return error;
  if (!failed && ddprun_dir_sync(c->dir) != 0) note_failure(handle);
  // Reported before it is sent: the commit may be here before the send returns.
  pthread_mutex_lock(&c->mutex);
  error = check_writing(c, step);
  if (!error && c->failed) {
    error = ddprun_set_error(DDPRUN_EIO, "%s", c->failure);
  } else if (!error) {
    set_phase(c, kDdprunReported);
  }
  pthread_mutex_unlock(&c->mutex);
  if (error == DDPRUN_EIO) send_failure(handle, step, c->failure);
  return error ? error : send_written(handle, step);
}

int ddprun_checkpoint_fail(ddprun_handle* handle, int64_t step, const char* reason) {
  const int error = ddprun_usable(handle);
  return error ? error : send_failure(handle, step, reason ? reason : "no reason given");
}

int ddprun_checkpoint_skip(ddprun_handle* handle, int64_t step, const char* reason) {
  const int error = ddprun_usable(handle);
  if (error) return error;
  return send_step(handle, "CheckpointSkipped", step, reason ? reason : "no reason given", 1);
}

int ddprun_checkpoint_in_flight(const ddprun_handle* handle) {
  return atomic_load(&handle->checkpoint.in_flight);
}

int ddprun_checkpoint_wait(ddprun_handle* handle, int64_t step, double timeout_seconds) {
  int error = ddprun_usable(handle);
  if (error) return error;
  if (!(timeout_seconds >= 0)) return ddprun_set_error(DDPRUN_EINVAL, "the timeout is negative");
  struct ddprun_checkpoint* const c = &handle->checkpoint;
  const struct timespec deadline = ddprun_deadline(timeout_seconds);
  const struct ddprun_outcome* outcome = NULL;
  int late = 0;
  pthread_mutex_lock(&c->mutex);
  for (;;) {
    outcome = find_outcome(c, step);
    const int in_flight = c->phase != kDdprunIdle && c->step == step;
    if (outcome || !in_flight || late) break;
    late = pthread_cond_timedwait(&c->settled, &c->mutex, &deadline) == ETIMEDOUT;
  }
  if (outcome && outcome->dropped) {
    error = dropped_error(outcome);
  } else if (!outcome && late) {
    error = ddprun_set_error(DDPRUN_ETIMEOUT,
                             "the checkpoint of step %" PRId64 " was not settled within %g s", step,
                             timeout_seconds);
  } else if (!outcome) {
    error = ddprun_set_error(DDPRUN_EINVAL, "no checkpoint of step %" PRId64 " was begun", step);
  }
  pthread_mutex_unlock(&c->mutex);
  return error;
}
