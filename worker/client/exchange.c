// Publish and await. Waiters stand in a list; the reader (or, by hand, a publish in the same
// process) copies the value straight into their buffers.
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/client/internal.h"

struct ddprun_waiter {
  struct ddprun_waiter* next;
  const char* group;
  const char* name;
  void* buffer;
  size_t capacity;
  size_t size;
  int done;
  int refused;
  char reason[kDdprunReasonBytes];
};

struct ddprun_local_value {
  struct ddprun_local_value* next;
  char* group;
  char* name;
  size_t size;
  unsigned char data[];
};

static int check_key(const char* group, const char* name) {
  const size_t group_size = group ? strnlen(group, kDdprunKeyBytesMax + 1) : 0;
  const size_t name_size = name ? strnlen(name, kDdprunKeyBytesMax + 1) : 0;
  if (group_size == 0 || name_size == 0 || group_size > kDdprunKeyBytesMax ||
      name_size > kDdprunKeyBytesMax) {
    return ddprun_set_error(DDPRUN_EINVAL, "group and name must have 1 to %d bytes",
                            kDdprunKeyBytesMax);
  }
  return 0;
}

static int same_key(const char* group, const char* name, const char* group2, const char* name2) {
  return strcmp(group, group2) == 0 && strcmp(name, name2) == 0;
}

void ddprun_exchange_value(ddprun_handle* d, const char* group, const char* name, const void* data,
                           size_t size) {
  struct ddprun_exchange* const x = &d->exchange;
  pthread_mutex_lock(&x->mutex);
  for (struct ddprun_waiter* w = x->waiters; w; w = w->next) {
    if (w->done || !same_key(w->group, w->name, group, name)) continue;
    w->size = size;
    if (size > 0 && size <= w->capacity) memcpy(w->buffer, data, size);
    w->done = 1;
  }
  pthread_cond_broadcast(&x->settled);
  pthread_mutex_unlock(&x->mutex);
}

// A refusal with nobody waiting answers an earlier publish (which does not wait): it is kept for
// the next call that names the key.
void ddprun_exchange_refused(ddprun_handle* d, const char* group, const char* name,
                             const char* reason) {
  struct ddprun_exchange* const x = &d->exchange;
  int taken = 0;
  pthread_mutex_lock(&x->mutex);
  for (struct ddprun_waiter* w = x->waiters; w; w = w->next) {
    if (w->done || !same_key(w->group, w->name, group, name)) continue;
    snprintf(w->reason, sizeof w->reason, "%s", reason);
    w->refused = w->done = taken = 1;
  }
  if (!taken) {
    struct ddprun_refusal* const kept = &x->refusals[x->refusal_count++ % kDdprunRefusalsMax];
    snprintf(kept->group, sizeof kept->group, "%s", group);
    snprintf(kept->name, sizeof kept->name, "%s", name);
    snprintf(kept->reason, sizeof kept->reason, "%s", reason);
  }
  pthread_cond_broadcast(&x->settled);
  pthread_mutex_unlock(&x->mutex);
}

// REQUIRES: the mutex is held. Returns DDPRUN_EREFUSED for a refusal kept for the key, once; or 0.
static int take_refusal(struct ddprun_exchange* x, const char* group, const char* name) {
  for (int i = 0; i < kDdprunRefusalsMax; ++i) {
    struct ddprun_refusal* const kept = &x->refusals[i];
    if (kept->group[0] && same_key(kept->group, kept->name, group, name)) {
      kept->group[0] = '\0';
      return ddprun_set_error(DDPRUN_EREFUSED, "%s/%s was refused: %s", group, name, kept->reason);
    }
  }
  return 0;
}

// REQUIRES: the mutex is held.
static struct ddprun_local_value* find_local(struct ddprun_exchange* x, const char* group,
                                             const char* name) {
  struct ddprun_local_value* value = x->values;
  while (value && !same_key(value->group, value->name, group, name)) value = value->next;
  return value;
}

static void free_local(struct ddprun_local_value* value) {
  if (value == NULL) return;
  free(value->group);
  free(value->name);
  free(value);
}

static struct ddprun_local_value* make_local(const char* group, const char* name, const void* data,
                                             size_t size) {
  struct ddprun_local_value* const value = calloc(1, sizeof *value + size);
  if (value == NULL) return NULL;
  value->group = strdup(group);
  value->name = strdup(name);
  value->size = size;
  if (size > 0) memcpy(value->data, data, size);
  if (value->group && value->name) return value;
  free_local(value);
  return NULL;
}

// By hand: the exchange of this process alone, with the launcher's rules.
static int publish_local(ddprun_handle* d, const char* group, const char* name, const void* data,
                         size_t size) {
  struct ddprun_exchange* const x = &d->exchange;
  struct ddprun_local_value* const fresh = make_local(group, name, data, size);
  if (fresh == NULL) return ddprun_set_error(DDPRUN_ESIZE, "out of memory");
  int error = 0;
  pthread_mutex_lock(&x->mutex);
  const struct ddprun_local_value* const there = find_local(x, group, name);
  const int added = !there && x->value_count < kDdprunLocalValuesMax;
  if (added) {
    fresh->next = x->values;
    x->values = fresh;
    ++x->value_count;
  } else if (!there) {
    error = ddprun_set_error(DDPRUN_EREFUSED, "%s/%s: more than %d names are published", group,
                             name, kDdprunLocalValuesMax);
  } else if (there->size != size || memcmp(there->data, fresh->data, size) != 0) {
    error = ddprun_set_error(DDPRUN_EREFUSED, "%s/%s is published already, with other bytes", group,
                             name);
  }
  pthread_mutex_unlock(&x->mutex);
  if (!added) free_local(fresh);
  if (!error) ddprun_exchange_value(d, group, name, data, size);
  return error;
}

int ddprun_publish(ddprun_handle* handle, const char* group, const char* name, const void* data,
                   size_t size) {
  int error = ddprun_usable(handle);
  if (!error) error = check_key(group, name);
  if (error) return error;
  if (data == NULL && size > 0) return ddprun_set_error(DDPRUN_EINVAL, "data is NULL");
  if (size > kDdprunValueBytesMax) {
    return ddprun_set_error(DDPRUN_ESIZE, "%s/%s has %zu bytes; a value has at most %d", group,
                            name, size, kDdprunValueBytesMax);
  }
  pthread_mutex_lock(&handle->exchange.mutex);
  error = take_refusal(&handle->exchange, group, name);
  pthread_mutex_unlock(&handle->exchange.mutex);
  if (error) return error;
  if (handle->socket < 0) return publish_local(handle, group, name, data, size);
  char* const buffer = malloc(kDdprunPacketBytesMax);
  if (buffer == NULL) return ddprun_set_error(DDPRUN_ESIZE, "out of memory");
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, kDdprunPacketBytesMax, "Publish");
  ddprun_packet_text(&packet, "GROUP", group);
  ddprun_packet_text(&packet, "NAME", name);
  ddprun_packet_base64(&packet, "VALUE", data, size);
  error = ddprun_send(handle, &packet, 1);
  free(buffer);
  return error;
}

static int ask(ddprun_handle* d, const char* group, const char* name) {
  char buffer[4 * kDdprunKeyBytesMax + 64];  // both keys escaped
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Await");
  ddprun_packet_text(&packet, "GROUP", group);
  ddprun_packet_text(&packet, "NAME", name);
  return ddprun_send(d, &packet, 1);
}

// Joins the list of waiters, or settles w at once. Returns 0 or the refusal.
static int enlist(ddprun_handle* d, struct ddprun_waiter* w) {
  struct ddprun_exchange* const x = &d->exchange;
  pthread_mutex_lock(&x->mutex);
  const int error = take_refusal(x, w->group, w->name);
  const struct ddprun_local_value* const there = find_local(x, w->group, w->name);
  if (there) {
    w->size = there->size;
    if (there->size > 0 && there->size <= w->capacity) memcpy(w->buffer, there->data, there->size);
    w->done = 1;
  }
  if (!error) {
    w->next = x->waiters;
    x->waiters = w;
  }
  pthread_mutex_unlock(&x->mutex);
  return error;
}

// Waits until w is settled or the deadline passes, and leaves the list.
static void wait_settled(ddprun_handle* d, struct ddprun_waiter* w,
                         const struct timespec* deadline) {
  struct ddprun_exchange* const x = &d->exchange;
  pthread_mutex_lock(&x->mutex);
  int late = 0;
  while (!w->done && !late) {
    late = pthread_cond_timedwait(&x->settled, &x->mutex, deadline) == ETIMEDOUT;
  }
  struct ddprun_waiter** link = &x->waiters;
  while (*link != w) link = &(*link)->next;
  *link = w->next;
  pthread_mutex_unlock(&x->mutex);
}

int ddprun_await(ddprun_handle* handle, const char* group, const char* name, void* buffer,
                 size_t capacity, size_t* size, double timeout_seconds) {
  int error = ddprun_usable(handle);
  if (!error) error = check_key(group, name);
  if (error) return error;
  if ((buffer == NULL && capacity > 0) || size == NULL || !(timeout_seconds >= 0)) {
    return ddprun_set_error(DDPRUN_EINVAL, "buffer or size is NULL, or the timeout is negative");
  }
  const struct timespec deadline = ddprun_deadline(timeout_seconds);
  struct ddprun_waiter w = {.group = group, .name = name, .buffer = buffer, .capacity = capacity};
  error = enlist(handle, &w);
  if (error) return error;
  if (handle->socket >= 0) error = ask(handle, group, name);
  wait_settled(handle, &w, error ? &(struct timespec){0, 0} : &deadline);
  if (error) return error;
  if (!w.done) {
    return ddprun_set_error(DDPRUN_ETIMEOUT, "rank %d: %s/%s was not published within %g s",
                            handle->rank, group, name, timeout_seconds);
  }
  if (w.refused) {
    return ddprun_set_error(DDPRUN_EREFUSED, "%s/%s was refused: %s", group, name, w.reason);
  }
  *size = w.size;
  if (w.size > capacity) {
    return ddprun_set_error(DDPRUN_ESIZE, "%s/%s has %zu bytes, the buffer %zu", group, name,
                            w.size, capacity);
  }
  return 0;
}

void ddprun_exchange_free(ddprun_handle* d) {
  while (d->exchange.values) {
    struct ddprun_local_value* const next = d->exchange.values->next;
    free_local(d->exchange.values);
    d->exchange.values = next;
  }
}
