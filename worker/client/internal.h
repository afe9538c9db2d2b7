// The handle behind ddprun.h, and what the files of the library call in each other.
//
// Threads: the program's own, and the reader (socket.c). Each group of fields below names the mutex
// that guards it; no code holds two of them at once. The reader never waits for anything but
// its socket, so that an abort or the launcher's end takes effect whatever the program does.
#ifndef DDPRUN_WORKER_CLIENT_INTERNAL_H_
#define DDPRUN_WORKER_CLIENT_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "worker/client/ddprun.h"
#include "worker/client/error.h"
#include "worker/client/packet.h"
#include "worker/client/page.h"
#include "worker/client/settings.h"

enum {
  kDdprunKeyBytesMax = 256,       // of a group or a name in the exchange
  kDdprunRequestsMax = 8,         // edge requests in flight; the launcher has at most two
  kDdprunRefusalsMax = 8,         // refusals that no call has seen yet; the oldest is forgotten
  kDdprunLocalValuesMax = 1024,   // by hand: names in the exchange of this process
  kDdprunFilesMax = 64,           // of one rank in one checkpoint
  kDdprunFileNameBytesMax = 128,  // leaves room for the temporary name's ending in NAME_MAX
  kDdprunOutcomesMax = 16,        // settled checkpoints that ddprun_checkpoint_wait remembers
  kDdprunReasonBytes = 256,       // of a launcher's reason, kept for the error text
  kDdprunPathBytes = 4096,
  kDdprunSendSeconds = 10,         // a send that takes longer fails: the keeper reads at once
  kDdprunPreviousSeconds = 600,    // a checkpoint waits so long for the one before
  kDdprunProgressNs = 1000000000,  // at most one progress packet in this time
  kDdprunMessageBytesMax = 16384,  // of a failure report; twice that is a packet's half
};

// ---- exchange.c, guarded by exchange.mutex
struct ddprun_waiter;       // one blocked ddprun_await
struct ddprun_local_value;  // by hand: one published value
struct ddprun_refusal {
  char group[kDdprunKeyBytesMax + 1];
  char name[kDdprunKeyBytesMax + 1];
  char reason[kDdprunReasonBytes];
};
struct ddprun_exchange {
  pthread_mutex_t mutex;
  pthread_cond_t settled;
  struct ddprun_waiter* waiters;
  struct ddprun_local_value* values;
  int value_count;
  struct ddprun_refusal refusals[kDdprunRefusalsMax];
  unsigned refusal_count;  // ever kept; position in the ring
};

// ---- edge.c and progress.c, guarded by training.mutex
enum ddprun_request_state {
  kDdprunRequestFree,
  kDdprunRequestAsked,   // this rank has (or will have) answered `edge` and waits there
  kDdprunRequestAgreed,  // all ranks checkpoint at `target`
  kDdprunRequestMissed,  // CheckpointFailed for `target` must still be sent
};
struct ddprun_request {
  enum ddprun_request_state state;
  int answer_due;  // the Edge packet is not sent yet
  int stop;
  int64_t id;
  int64_t edge;
  int64_t target;
};
struct ddprun_training {
  pthread_mutex_t mutex;
  pthread_cond_t answered;
  int64_t completed;  // last completed step
  int waiting;        // the training thread pauses at the edge `completed`
  int stopping;       // DDPRUN_STOP was returned: no further step comes
  int finished;       // ddprun_finish was called
  int request_count;
  struct ddprun_request requests[kDdprunRequestsMax];
  int64_t due_step;   // DDPRUN_CHECKPOINT was returned for it and it is not begun yet; or -1
  int64_t last_step;  // newest step that was due, begun or failed; or -1
  // Facts of ddprun_progress_info.
  int has_info;
  int64_t epoch;
  int64_t epochs;
  int64_t total_steps;
  double samples_per_second;
  // Of the training thread alone.
  int progress_sent;
  int64_t progress_ns;
};

// ---- checkpoint.c, guarded by checkpoint.mutex (but for in_flight)
struct ddprun_file {
  char name[kDdprunFileNameBytesMax + 1];
  uint64_t bytes;
  char hash[33];
};
enum ddprun_checkpoint_phase { kDdprunIdle, kDdprunWriting, kDdprunReported };
struct ddprun_outcome {
  int64_t step;
  int dropped;
  char reason[kDdprunReasonBytes];
};
struct ddprun_checkpoint {
  pthread_mutex_t mutex;
  pthread_cond_t settled;
  atomic_int in_flight;
  enum ddprun_checkpoint_phase phase;
  int64_t step;        // of the one in flight
  int64_t last_begun;  // or -1
  int failed;          // a call for `step` failed: it cannot be reported as written
  int failure_sent;
  char failure[kDdprunReasonBytes];
  char dir[kDdprunPathBytes];
  int file_count;
  struct ddprun_file files[kDdprunFilesMax];
  struct ddprun_outcome outcomes[kDdprunOutcomesMax];
  unsigned outcome_count;  // ever kept; position in the ring
};

struct ddprun_handle {
  // Constant after ddprun_open.
  int socket;  // -1 by hand
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
  int64_t generation;
  int64_t resume_step;
  char* job_id;
  char* run_dir;
  char* state_dir;
  char* resume_from;  // NULL: from scratch
  int64_t (*now_ns)(void);
  unsigned fork_count;  // of the process when the handle was made
  pthread_t reader;
  char* inbox;  // of the reader: one packet
  atomic_int closing;
  struct ddprun_page page;
  struct ddprun_exchange exchange;
  struct ddprun_training training;
  struct ddprun_checkpoint checkpoint;
};

// client.c
// 0, or an error where the handle is NULL or belongs to the parent process.
int ddprun_usable(const ddprun_handle* d);
// A point in time for pthread_cond_timedwait on a condition of ours (CLOCK_MONOTONIC).
struct timespec ddprun_deadline(double seconds);
int ddprun_condition_init(pthread_cond_t* condition);

// socket.c
// Sends one packet, from any thread. `patient` waits for room up to kDdprunSendSeconds; otherwise a
// full socket is DDPRUN_ETIMEOUT at once. By hand nothing is sent and 0 returned.
int ddprun_send(ddprun_handle* d, const struct ddprun_packet* packet, int patient);
// Ends the process with 1 at once: nothing is to be saved, and neither exit handlers nor buffers of
// the program may hold it up.
void ddprun_exit(void);
// A thread without signals; 0 or an errno.
int ddprun_thread_start(pthread_t* thread, void* (*run)(void*), void* argument);
int ddprun_reader_start(ddprun_handle* d);
void ddprun_reader_stop(ddprun_handle* d);

// exchange.c; the first two are for the reader.
void ddprun_exchange_value(ddprun_handle* d, const char* group, const char* name, const void* data,
                           size_t size);
void ddprun_exchange_refused(ddprun_handle* d, const char* group, const char* name,
                             const char* reason);
void ddprun_exchange_free(ddprun_handle* d);

// edge.c; the first three are for the reader.
void ddprun_edge_requested(ddprun_handle* d, int64_t id, int stop);
void ddprun_edge_agreed(ddprun_handle* d, int64_t id, int64_t step, int stop);
// Sends what the reader owes without blocking; 1 when some of it must wait for room.
int ddprun_edge_flush(ddprun_handle* d);
// The training thread stands at the edge `completed`: waits while it must, and returns what is due.
int ddprun_edge_pause(ddprun_handle* d);
// The program began (or gave up) the checkpoint of this step.
void ddprun_edge_begun(ddprun_handle* d, int64_t step);
// No further step comes: whatever was agreed and not begun is failed.
void ddprun_edge_finish(ddprun_handle* d);

// checkpoint.c; for the reader.
void ddprun_checkpoint_committed(ddprun_handle* d, int64_t step);
void ddprun_checkpoint_dropped(ddprun_handle* d, int64_t step, const char* reason);
int ddprun_send_checkpoint_failed(ddprun_handle* d, int64_t step, const char* reason, int patient);

// file.c
// Writes the pieces durably to dir/name through a temporary name and fills `file`. Returns 0 or
// DDPRUN_EIO with path and reason; then nothing is left under either name.
int ddprun_file_write(const char* dir, const char* name, int rank, const ddprun_piece* pieces,
                      size_t count, struct ddprun_file* file);
int ddprun_dir_sync(const char* dir);
// Makes run_dir/checkpoints/.staging/<leaf>; other ranks may do the same at the same time.
int ddprun_dir_make(const char* run_dir, const char* leaf, char* dir, size_t dir_bytes);

#endif  // DDPRUN_WORKER_CLIENT_INTERNAL_H_
