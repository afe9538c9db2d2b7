#define _GNU_SOURCE  // O_DIRECT, fallocate, sync_file_range
#include "worker/client/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/client/internal.h"

enum {
  kBuffers = 2,
  kBufferBytes = 4 << 20,
  kAlignment = 4096,  // of memory, offset and size: the largest block size of common disks
};

struct ddprun_stream {
  int fd;
  char* buffers[kBuffers];
  // Of the caller.
  int filling;    // the buffer that is filled
  size_t filled;  // bytes in it
  // Of the thread; of the caller before it begins and after it ended.
  int direct;
  uint64_t written;
  // Guarded by `mutex`.
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int full;  // the buffer that is to be written, or -1
  int ended;
  int error;
  pthread_t thread;
};

// Sets or clears O_DIRECT; 0 where the file system does not know it.
static int set_direct(int fd, int direct) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return 0;
  return fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

static void write_through_cache(struct ddprun_stream* s) {
  if (s->direct) set_direct(s->fd, 0);
  s->direct = 0;
}

// 0 or an errno.
static int write_buffer(struct ddprun_stream* s, const char* data, size_t size) {
  if (size % kAlignment != 0) write_through_cache(s);
  while (size > 0) {
    const ssize_t written = write(s->fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && s->direct) {  // another alignment, or none at all
      write_through_cache(s);
      continue;
    }
    if (written < 0) return errno;
    // The disk begins now, not with the fsync: otherwise the kernel keeps gigabytes in memory
    // first. Only a hint: where it is not known the fsync does all.
    if (!s->direct) {
      sync_file_range(s->fd, (off_t)s->written, (off_t)written, SYNC_FILE_RANGE_WRITE);
    }
    s->written += (uint64_t)written;
    data += written;
    size -= (size_t)written;
    if (size > 0) write_through_cache(s);
  }
  return 0;
}

static void* writer(void* argument) {
  struct ddprun_stream* const s = argument;
  pthread_mutex_lock(&s->mutex);
  for (;;) {
    while (s->full < 0 && !s->ended) pthread_cond_wait(&s->changed, &s->mutex);
    if (s->full < 0) break;
    const char* const data = s->buffers[s->full];
    const int failed = s->error;
    pthread_mutex_unlock(&s->mutex);
    const int error = failed ? failed : write_buffer(s, data, kBufferBytes);
    pthread_mutex_lock(&s->mutex);
    s->full = -1;
    s->error = error;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static void free_stream(struct ddprun_stream* s) {
  for (int i = 0; i < kBuffers; ++i) free(s->buffers[i]);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->mutex);
  free(s);
}

struct ddprun_stream* ddprun_stream_begin(int fd, uint64_t bytes) {
  struct ddprun_stream* const s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->fd = fd;
  s->full = -1;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  int ready = 1;
  for (int i = 0; i < kBuffers; ++i) {
    void* buffer = NULL;
    ready = ready && posix_memalign(&buffer, kAlignment, kBufferBytes) == 0;
    s->buffers[i] = buffer;
  }
  if (!ready || ddprun_thread_start(&s->thread, writer, s) != 0) {
    free_stream(s);
    return NULL;
  }
  s->direct = set_direct(fd, 1);
  // Blocks in one run. Only a hint: where it is not known, or the disk is full, the writes say so.
  if (s->direct && bytes <= INT64_MAX) (void)!fallocate(fd, 0, 0, (off_t)bytes);
  return s;
}

// Hands over the buffer that is filled, once the thread has written the one before.
static int hand_over(struct ddprun_stream* s) {
  pthread_mutex_lock(&s->mutex);
  while (s->full >= 0) pthread_cond_wait(&s->changed, &s->mutex);
  s->full = s->filling;
  const int error = s->error;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  s->filling = (s->filling + 1) % kBuffers;
  s->filled = 0;
  return error;
}

int ddprun_stream_write(struct ddprun_stream* stream, const void* data, size_t size) {
  const char* from = data;
  while (size > 0) {
    const size_t room = kBufferBytes - stream->filled;
    const size_t part = size < room ? size : room;
    memcpy(stream->buffers[stream->filling] + stream->filled, from, part);
    stream->filled += part;
    from += part;
    size -= part;
    if (stream->filled < kBufferBytes) continue;
    const int error = hand_over(stream);
    if (error) return error;
  }
  return 0;
}

int ddprun_stream_end(struct ddprun_stream* stream) {
  pthread_mutex_lock(&stream->mutex);
  stream->ended = 1;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
  const char* const rest = stream->buffers[stream->filling];
  int error = stream->error;
  if (!error && stream->filled > 0) error = write_buffer(stream, rest, stream->filled);
  free_stream(stream);
  return error;
}
