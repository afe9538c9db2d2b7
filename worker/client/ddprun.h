/* libddprun: what a training program needs from its launcher, in plain C with no dependencies but
 * libc.
 *
 * Under `ddprun -- ./my_trainer` each worker calls ddprun_init() once and then asks for its rank,
 * exchanges bytes with the other workers (an NCCL unique ID, an address), reports progress and
 * takes part in checkpoints and stops. Run by hand, without ddprun, the same program is rank 0 of 1
 * and every call works.
 *
 * Threads: one handle per process. ddprun_step_done and the checkpoint calls belong to the training
 * thread; ddprun_checkpoint_write and ddprun_checkpoint_finish may be called from one background
 * thread instead. All other calls may come from any thread. The library runs one thread of its own,
 * which answers the launcher while the program computes, and ends the process at once when the
 * launcher orders an abort.
 *
 * Errors: functions that can fail return 0 on success or a negative DDPRUN_E… code;
 * ddprun_error(handle) then gives the text of the calling thread's last error. Nothing is printed.
 *
 * A trainer in short:
 *   ddprun_handle* d;
 *   ddprun_init(&d);
 *   ncclUniqueId id;
 *   if (ddprun_rank(d) == 0) {
 *     ncclGetUniqueId(&id);
 *     ddprun_publish(d, "world", "nccl", &id, sizeof id);
 *   }
 *   size_t n;
 *   ddprun_await(d, "world", "nccl", &id, sizeof id, &n, 60.0);
 *   … build the communicator, load ddprun_resume_from(d) when it is not NULL …
 *   ddprun_ready(d);
 *   for (step = ddprun_resume_step(d); step < total && !stop;) {
 *     … one training step …
 *     int todo = ddprun_step_done(d, ++step, loss);
 *     if (todo & DDPRUN_CHECKPOINT) {
 *       ddprun_checkpoint_begin(d, step);
 *       ddprun_checkpoint_write(d, step, "w.bin", w, n);
 *       ddprun_checkpoint_finish(d, step);
 *     }
 *     stop = (todo & DDPRUN_STOP) != 0;
 *   }
 *   if (ddprun_checkpoint_in_flight(d)) ddprun_checkpoint_wait(d, step, 60.0);
 *   ddprun_finish(d);
 */
#ifndef DDPRUN_H_
#define DDPRUN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DDPRUN_API __attribute__((visibility("default")))
#else
#define DDPRUN_API
#endif

/* Not named ddprun: C++ programs may have a namespace of that name. */
typedef struct ddprun_handle ddprun_handle;

/* Error codes. */
enum {
  DDPRUN_EINVAL = -1,   /* an argument is out of range; nothing was done */
  DDPRUN_EPROTO = -2,   /* the environment or the launcher's message makes no sense */
  DDPRUN_ETIMEOUT = -3, /* the deadline passed */
  DDPRUN_EREFUSED = -4, /* the launcher refused: ddprun_error says why */
  DDPRUN_ESIZE = -5,    /* the buffer is too small, or the value too large (32 KiB) */
  DDPRUN_EIO = -6,      /* a file could not be written; the checkpoint must be failed */
  DDPRUN_EDROPPED = -7  /* the checkpoint was dropped (a peer failed to write) */
};

/* Connects to the launcher that started this process. Returns 0 or an error; *handle is NULL on
 * error. Removes DDPRUN_SOCKET_FD and DDPRUN_PAGE_FD from the environment and sets close-on-exec,
 * so children do not inherit them. */
DDPRUN_API int ddprun_init(ddprun_handle** handle);

/* Who am I. Without a launcher: 0 of 1, generation 1, job id "local". */
DDPRUN_API int ddprun_rank(const ddprun_handle* handle);
DDPRUN_API int ddprun_world_size(const ddprun_handle* handle);
DDPRUN_API int ddprun_local_rank(const ddprun_handle* handle);
DDPRUN_API int ddprun_local_world_size(const ddprun_handle* handle);
DDPRUN_API int64_t ddprun_generation(const ddprun_handle* handle);
DDPRUN_API const char* ddprun_job_id(const ddprun_handle* handle);
DDPRUN_API int ddprun_is_launched(const ddprun_handle* handle);     /* 1 under ddprun, 0 by hand */
DDPRUN_API const char* ddprun_run_dir(const ddprun_handle* handle); /* "" by hand */
DDPRUN_API const char* ddprun_state_dir(const ddprun_handle* handle); /* "" by hand */

/* The committed checkpoint to start from: its folder, or NULL when from scratch; its step, or 0.
 * The same on every rank. */
DDPRUN_API const char* ddprun_resume_from(const ddprun_handle* handle);
DDPRUN_API int64_t ddprun_resume_step(const ddprun_handle* handle);

/* Gives `size` bytes (at most 32 KiB) to every worker of this generation, under (group, name). A
 * name is published once; the same bytes again are no error. Keys of another generation cannot be
 * reached. Does not wait: a refusal is returned by the next call that names the key. */
DDPRUN_API int ddprun_publish(ddprun_handle* handle, const char* group, const char* name,
                              const void* data, size_t size);
/* Waits until (group, name) is published, copies it to buffer and sets *size. Several threads may
 * wait. */
DDPRUN_API int ddprun_await(ddprun_handle* handle, const char* group, const char* name,
                            void* buffer, size_t capacity, size_t* size, double timeout_seconds);

/* Communicators are up, training begins. Failures before this call are start-up failures. */
DDPRUN_API int ddprun_ready(ddprun_handle* handle);

/* What ddprun_step_done asks for; 0 = go on. */
enum {
  DDPRUN_CHECKPOINT = 1, /* write a checkpoint of exactly this step now */
  DDPRUN_STOP = 2        /* after that checkpoint: wait for its commit (ddprun_checkpoint_wait),
                            ddprun_finish, exit 0 */
};
/* The training thread completed `step` (1, 2, …; one more each time): reports progress and is the
 * one place where a stop or a checkpoint on demand is agreed among the ranks. Takes well under a
 * microsecond unless such a request is pending; then it waits (milliseconds) until all ranks know
 * the step. A program that does not begin a checkpoint that it was asked for has it failed at its
 * next step_done or finish. At the last step (total_steps of ddprun_progress_info, on every rank)
 * nothing is asked for: the program ends there anyway, with its last checkpoint. */
DDPRUN_API int ddprun_step_done(ddprun_handle* handle, int64_t step, double loss);
/* Optional facts for the progress display; call when they change. Totals of 0 are unknown. */
DDPRUN_API void ddprun_progress_info(ddprun_handle* handle, int64_t epoch, int64_t epochs,
                                     int64_t total_steps, double samples_per_second);

/* Phases of the step page, read by the launcher when a worker hangs or died. */
enum {
  DDPRUN_PHASE_STARTING,
  DDPRUN_PHASE_LOADING,
  DDPRUN_PHASE_CONNECTING,
  DDPRUN_PHASE_COMPUTE,
  DDPRUN_PHASE_OPTIMIZER,
  DDPRUN_PHASE_DATA,
  DDPRUN_PHASE_CHECKPOINT,
  DDPRUN_PHASE_EVALUATE,
  DDPRUN_PHASE_END
};
/* Both take nanoseconds; text may be NULL (unchanged). */
DDPRUN_API void ddprun_phase(ddprun_handle* handle, int phase, const char* text);
DDPRUN_API void ddprun_collective(ddprun_handle* handle, const char* name, uint64_t sequence,
                                  int finished);

/* Checkpoints. All ranks write the same step into one staging folder, each its own file names; the
 * launcher commits when every rank has finished. Periodic ones are begun by the program itself, at
 * the same step on every rank; while ddprun_checkpoint_in_flight() a periodic one should be left
 * out (rank 0 reports it with ddprun_checkpoint_skip).
 *
 * begin: makes the folder `checkpoints/.staging/g<G>-step-<N>`; ddprun_checkpoint_dir gives its
 *   path ("" by hand: nothing is written and the calls succeed). Steps grow. Waits for the
 *   checkpoint before (at most 600 s).
 * write: temporary name, fsync, rename, XXH3-128; file names are [A-Za-z0-9._-]+, at most 128
 *   bytes, no dot first; at most 64 files of a rank. An fsync error is final.
 * finish: reports this rank's files (fsyncs the folder first); after a begin or write that failed
 *   it fails the checkpoint instead and returns that error.
 * fail: this rank cannot; the checkpoint is dropped everywhere.
 * wait: until committed (0) or DDPRUN_EDROPPED.
 * Once a peer has failed, begin, write and finish return DDPRUN_EDROPPED. */
DDPRUN_API int ddprun_checkpoint_begin(ddprun_handle* handle, int64_t step);
DDPRUN_API const char* ddprun_checkpoint_dir(ddprun_handle* handle);
DDPRUN_API int ddprun_checkpoint_write(ddprun_handle* handle, int64_t step, const char* name,
                                       const void* data, size_t size);
/* The same from several pieces, so that a large file needs no copy. */
typedef struct {
  const void* data;
  size_t size;
} ddprun_piece;
DDPRUN_API int ddprun_checkpoint_writev(ddprun_handle* handle, int64_t step, const char* name,
                                        const ddprun_piece* pieces, size_t count);
DDPRUN_API int ddprun_checkpoint_finish(ddprun_handle* handle, int64_t step);
DDPRUN_API int ddprun_checkpoint_fail(ddprun_handle* handle, int64_t step, const char* reason);
DDPRUN_API int ddprun_checkpoint_skip(ddprun_handle* handle, int64_t step, const char* reason);
/* 1 from begin until committed or dropped. */
DDPRUN_API int ddprun_checkpoint_in_flight(const ddprun_handle* handle);
DDPRUN_API int ddprun_checkpoint_wait(ddprun_handle* handle, int64_t step, double timeout_seconds);

/* Says why this worker is about to fail, before it exits with a code other than 0. The first report
 * that is not DDPRUN_FAIL_COMMUNICATION becomes the root cause. CONFIG: a restart cannot help. */
enum { DDPRUN_FAIL_ERROR, DDPRUN_FAIL_COMMUNICATION, DDPRUN_FAIL_CONFIG };
DDPRUN_API int ddprun_fail(ddprun_handle* handle, int kind, const char* message);

/* Values for result.json; keys FINAL_STEP, WEIGHTS_DIGEST, METRIC.<name> with a name of
 * [A-Za-z0-9_.]+. Rank 0's are kept. */
DDPRUN_API int ddprun_result(ddprun_handle* handle, const char* key, const char* value);
/* The work is done; exit 0 follows. The handle may still be asked who it is. */
DDPRUN_API int ddprun_finish(ddprun_handle* handle);

/* Text of the calling thread's last error; never NULL. */
DDPRUN_API const char* ddprun_error(const ddprun_handle* handle);

#ifdef __cplusplus
}
#endif
#endif /* DDPRUN_H_ */
