// One durable file: temporary name, write, fsync, rename; its XXH3-128 is computed on the way. An
// fsync error is final for the file (the kernel may have dropped the pages it could not write).
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "worker/client/internal.h"
#include "worker/client/stream.h"

enum { kChunkBytes = 1 << 20 };  // hashed, then copied while it is in the cache

// 0 or an errno.
static int write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    data += written;
    size -= (size_t)written;
  }
  return 0;
}

// To the stream, or where there is none to the file. 0 or an errno.
static int write_pieces(int fd, struct ddprun_stream* stream, const ddprun_piece* pieces,
                        size_t count, struct ddprun_file* file) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (size_t i = 0; i < count; ++i) {
    const char* const data = pieces[i].data;
    for (size_t at = 0; at < pieces[i].size;) {
      const size_t left = pieces[i].size - at;
      const size_t chunk = left < kChunkBytes ? left : (size_t)kChunkBytes;
      XXH3_128bits_update(&state, data + at, chunk);
      const int error =
          stream ? ddprun_stream_write(stream, data + at, chunk) : write_all(fd, data + at, chunk);
      if (error) return error;
      at += chunk;
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  snprintf(file->hash, sizeof file->hash, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
           (uint64_t)hash.low64);
  return 0;
}

// 0 or an errno.
static int write_content(int fd, const ddprun_piece* pieces, size_t count,
                         struct ddprun_file* file) {
  file->bytes = 0;
  for (size_t i = 0; i < count; ++i) file->bytes += pieces[i].size;
  struct ddprun_stream* const stream =
      file->bytes < kDdprunStreamBytesMin ? NULL : ddprun_stream_begin(fd, file->bytes);
  const int error = write_pieces(fd, stream, pieces, count, file);
  const int late = stream ? ddprun_stream_end(stream) : 0;
  return error ? error : late;
}

// Removes what is there of a file that failed, and keeps errno's text.
static int fail_file(const char* path, const char* what) {
  const int error_number = errno;
  unlink(path);
  return ddprun_set_errno(DDPRUN_EIO, error_number, "cannot %s %s", what, path);
}

int ddprun_file_write(const char* dir, const char* name, int rank, const ddprun_piece* pieces,
                      size_t count, struct ddprun_file* file) {
  char path[kDdprunPathBytes + kDdprunFileNameBytesMax + 2];
  char temporary[sizeof path + 32];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  snprintf(temporary, sizeof temporary, "%s.tmp.%d", path, rank);
  snprintf(file->name, sizeof file->name, "%s", name);
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return ddprun_set_errno(DDPRUN_EIO, errno, "cannot create %s", temporary);
  const char* failed = NULL;
  if ((errno = write_content(fd, pieces, count, file)) != 0) {
    failed = "write";
  } else if (fsync(fd) != 0) {
    failed = "sync";
  }
  const int error_number = errno;
  if (close(fd) != 0 && !failed) {
    failed = "close";
  } else {
    errno = error_number;
  }
  if (failed) return fail_file(temporary, failed);
  if (rename(temporary, path) != 0) return fail_file(temporary, "rename");
  return 0;
}

int ddprun_dir_sync(const char* dir) {
  const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ddprun_set_errno(DDPRUN_EIO, errno, "cannot open %s", dir);
  const int failed = fsync(fd) != 0;
  const int error_number = errno;
  close(fd);
  return failed ? ddprun_set_errno(DDPRUN_EIO, error_number, "cannot sync %s", dir) : 0;
}

int ddprun_dir_make(const char* run_dir, const char* leaf, char* dir, size_t dir_bytes) {
  const char* const parts[] = {"checkpoints", ".staging", leaf};
  size_t used = (size_t)snprintf(dir, dir_bytes, "%s", run_dir);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
    if (used < dir_bytes) {
      used += (size_t)snprintf(dir + used, dir_bytes - used, "/%s", parts[i]);
    }
    if (used >= dir_bytes) {
      return ddprun_set_error(DDPRUN_EIO, "the path of the run folder is too long: %s", run_dir);
    }
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
      return ddprun_set_errno(DDPRUN_EIO, errno, "cannot make the folder %s", dir);
    }
  }
  return 0;
}
