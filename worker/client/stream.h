// A large file on its way to the disk: the caller's pieces are copied into one buffer
// while a thread writes the other, past the page cache (O_DIRECT) where the file system can. So the
// disk never waits for the processor, and gigabytes of a checkpoint neither cost a second copy nor
// push training data out of the page cache. Where O_DIRECT is not known, or ends to be (after a
// short write), the same bytes go through the page cache.
//
// One thread at a time may call; fsync and close stay with the caller.
#ifndef DDPRUN_WORKER_CLIENT_STREAM_H_
#define DDPRUN_WORKER_CLIENT_STREAM_H_

#include <stddef.h>
#include <stdint.h>

enum { kDdprunStreamBytesMin = 16 << 20 };  // of a file; below it a thread costs more than it saves

struct ddprun_stream;

// `fd`: open for writing, at offset 0 of an empty file that will have `bytes` bytes. NULL: no
// memory or no thread; nothing has been done to `fd`.
struct ddprun_stream* ddprun_stream_begin(int fd, uint64_t bytes);

// Copies the piece. 0, or the errno of a write that failed, of this or an earlier piece.
int ddprun_stream_write(struct ddprun_stream* stream, const void* data, size_t size);

// Writes what is left, waits for the thread and frees `stream`. 0, or the errno of the write that
// failed.
int ddprun_stream_end(struct ddprun_stream* stream);

#endif  // DDPRUN_WORKER_CLIENT_STREAM_H_
