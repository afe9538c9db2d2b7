// Packets to and from the keeper. Sends come from any thread: one packet is one atomic send, so
// they need no lock. Receiving is the reader thread's alone.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker/client/internal.h"

static int64_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int ddprun_send(ddprun_handle* d, const struct ddprun_packet* packet, int patient) {
  if (packet->overflow || packet->size > kDdprunPacketBytesMax) {
    return ddprun_set_error(DDPRUN_ESIZE, "the message is larger than a packet (%d bytes)",
                            kDdprunPacketBytesMax);
  }
  if (d->socket < 0) return 0;
  const int64_t deadline_ms = now_ms() + kDdprunSendSeconds * 1000;
  for (;;) {
    if (send(d->socket, packet->data, packet->size, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return ddprun_set_errno(DDPRUN_EPROTO, errno, "cannot send to the launcher");
    }
    const int64_t left_ms = deadline_ms - now_ms();
    if (!patient || left_ms <= 0) {
      return ddprun_set_error(DDPRUN_ETIMEOUT, "the launcher takes no messages%s",
                              patient ? " since 10 s" : " at the moment");
    }
    struct pollfd writable = {d->socket, POLLOUT, 0};
    poll(&writable, 1, (int)left_ms);
  }
}

void ddprun_exit(void) {
  // Not _exit: libraries that wrap it (sanitizers, profilers) flush and wait there.
  syscall(SYS_exit_group, 1);
  abort();
}

// The launcher is gone or wants this process gone.
static void leave(const ddprun_handle* d) {
  if (!atomic_load(&d->closing)) ddprun_exit();
}

static int purpose_is_stop(const struct ddprun_fields* fields) {
  const struct ddprun_field* const purpose = ddprun_packet_find(fields, "PURPOSE");
  return purpose != NULL && strcmp(purpose->value, "stop") == 0;
}

static const char* value_or(const struct ddprun_fields* fields, const char* key,
                            const char* otherwise) {
  const struct ddprun_field* const field = ddprun_packet_find(fields, key);
  return field ? field->value : otherwise;
}

static void take_value(ddprun_handle* d, const struct ddprun_fields* fields) {
  const char* const group = value_or(fields, "GROUP", NULL);
  const char* const name = value_or(fields, "NAME", NULL);
  const struct ddprun_field* const value = ddprun_packet_find(fields, "VALUE");
  if (!group || !name || !value) return;
  const size_t size =
      ddprun_wire_base64_decode(value->value, value->size, value->value, value->size);
  if (size == (size_t)-1) {
    ddprun_exchange_refused(d, group, name, "the launcher sent a value that is not base64");
  } else {
    ddprun_exchange_value(d, group, name, value->value, size);
  }
}

// Packets without a required key and of unknown types are void (the protocol may grow).
static void take_packet(ddprun_handle* d, char* data, size_t size) {
  struct ddprun_fields fields;
  if (ddprun_packet_parse(data, size, &fields) != 0) return;
  const char* const type = fields.at[0].value;
  const char* const reason = value_or(&fields, "REASON", "no reason given");
  int64_t id = 0;
  int64_t step = 0;
  const int has_id = ddprun_packet_find_int(&fields, "ID", &id) == 0;
  const int has_step = ddprun_packet_find_int(&fields, "STEP", &step) == 0;
  if (strcmp(type, "Value") == 0) {
    take_value(d, &fields);
  } else if (strcmp(type, "Refused") == 0) {
    const char* const group = value_or(&fields, "GROUP", NULL);
    const char* const name = value_or(&fields, "NAME", NULL);
    if (group && name) ddprun_exchange_refused(d, group, name, reason);
  } else if (strcmp(type, "EdgeRequest") == 0) {
    if (has_id) ddprun_edge_requested(d, id, purpose_is_stop(&fields));
  } else if (strcmp(type, "CheckpointAt") == 0) {
    if (has_id && has_step) ddprun_edge_agreed(d, id, step, purpose_is_stop(&fields));
  } else if (strcmp(type, "CheckpointCommitted") == 0) {
    if (has_step) ddprun_checkpoint_committed(d, step);
  } else if (strcmp(type, "CheckpointDropped") == 0) {
    if (has_step) ddprun_checkpoint_dropped(d, step, reason);
  } else if (strcmp(type, "Abort") == 0) {
    leave(d);
  }
}

// Takes at most one packet; returns 0 when the launcher is gone.
static int receive(ddprun_handle* d, short events) {
  // MSG_TRUNC: the true size, so that a packet over the limit is seen as such and ignored.
  const ssize_t size = recv(d->socket, d->inbox, kDdprunPacketBytesMax, MSG_DONTWAIT | MSG_TRUNC);
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (size == 0) return (events & (POLLHUP | POLLERR)) == 0;  // else an empty packet: void
  if (size <= kDdprunPacketBytesMax) take_packet(d, d->inbox, (size_t)size);
  return 1;
}

static void* reader(void* argument) {
  ddprun_handle* const d = argument;
  int owes = 0;  // answers that the socket had no room for
  for (;;) {
    struct pollfd ready = {d->socket, (short)(POLLIN | (owes ? POLLOUT : 0)), 0};
    if (poll(&ready, 1, -1) < 0) continue;  // EINTR
    const int gone =
        (ready.revents & POLLNVAL) ||
        (ready.revents & (POLLIN | POLLHUP | POLLERR) ? !receive(d, ready.revents) : 0);
    if (gone) {
      leave(d);
      return NULL;
    }
    owes = ddprun_edge_flush(d);
  }
}

int ddprun_thread_start(pthread_t* thread, void* (*run)(void*), void* argument) {
  // The program's signal handlers must run on the program's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, NULL, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

int ddprun_reader_start(ddprun_handle* d) {
  const int error = ddprun_thread_start(&d->reader, reader, d);
  return error ? ddprun_set_errno(DDPRUN_EIO, error, "cannot start the reader thread") : 0;
}

void ddprun_reader_stop(ddprun_handle* d) {
  atomic_store(&d->closing, 1);
  shutdown(d->socket, SHUT_RDWR);
  pthread_join(d->reader, NULL);
}
