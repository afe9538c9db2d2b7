// The handle: environment, identity, and the reports that need no state.
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/client/internal.h"

// Counts forks on the child's side. A child has the handle but not the reader thread, and the
// launcher takes nothing from it: its calls must fail instead of hanging on a lock.
static atomic_uint fork_count;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void count_fork(void) {
  atomic_fetch_add(&fork_count, 1);
}
static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}

int ddprun_usable(const ddprun_handle* d) {
  if (d == NULL) return ddprun_set_error(DDPRUN_EINVAL, "the ddprun handle is NULL");
  if (d->fork_count != atomic_load_explicit(&fork_count, memory_order_relaxed)) {
    return ddprun_set_error(
        DDPRUN_EPROTO, "a forked child is not the worker: call ddprun from the parent process");
  }
  return 0;
}

struct timespec ddprun_deadline(double seconds) {
  const double most = 30 * 86400.0;  // keeps the sum far from overflow
  if (seconds > most) seconds = most;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  time.tv_sec += (time_t)seconds;
  time.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
  if (time.tv_nsec >= 1000000000) {
    time.tv_nsec -= 1000000000;
    ++time.tv_sec;
  }
  return time;
}

int ddprun_condition_init(pthread_cond_t* condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  const int error = pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
  return error;
}

static int64_t monotonic_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static char* copy(const char* text) {
  return strdup(text ? text : "");
}

static void free_handle(ddprun_handle* d) {
  free(d->job_id);
  free(d->run_dir);
  free(d->state_dir);
  free(d->resume_from);
  free(d->inbox);
  free(d);
}

static ddprun_handle* make_handle(const struct ddprun_settings* settings) {
  ddprun_handle* const d = calloc(1, sizeof *d);
  if (d == NULL) return NULL;
  d->socket = settings->socket_fd;
  d->rank = settings->rank;
  d->world_size = settings->world_size;
  d->local_rank = settings->local_rank;
  d->local_world_size = settings->local_world_size;
  d->generation = settings->generation;
  d->resume_step = settings->resume_step;
  d->now_ns = settings->now_ns ? settings->now_ns : monotonic_ns;
  d->job_id = copy(settings->job_id);
  d->run_dir = copy(settings->run_dir);
  d->state_dir = copy(settings->state_dir);
  const int resumes = settings->resume_from && settings->resume_from[0];
  d->resume_from = resumes ? copy(settings->resume_from) : NULL;
  d->inbox = malloc(kDdprunPacketBytesMax);
  d->training.completed = settings->resume_step;
  d->training.due_step = -1;
  d->training.last_step = -1;
  d->checkpoint.last_begun = -1;
  if (!d->job_id || !d->run_dir || !d->state_dir || !d->inbox || (resumes && !d->resume_from)) {
    free_handle(d);
    return NULL;
  }
  pthread_mutex_init(&d->exchange.mutex, NULL);
  pthread_mutex_init(&d->training.mutex, NULL);
  pthread_mutex_init(&d->checkpoint.mutex, NULL);
  ddprun_condition_init(&d->exchange.settled);
  ddprun_condition_init(&d->training.answered);
  ddprun_condition_init(&d->checkpoint.settled);
  return d;
}

static int check_socket(int fd) {
  struct stat status;
  int type = 0;
  socklen_t size = sizeof type;
  if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode) ||
      getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    return ddprun_set_error(DDPRUN_EPROTO,
                            "DDPRUN_SOCKET_FD: descriptor %d is not the launcher's socket; was it "
                            "closed between the launcher and this program?",
                            fd);
  }
  return 0;
}

static void close_on_exec(int fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int send_hello(ddprun_handle* d) {
  char buffer[128];
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Hello");
  ddprun_packet_int(&packet, "PROTOCOL", 1);
  ddprun_packet_int(&packet, "PID", getpid());
  return ddprun_send(d, &packet, 1);
}

int ddprun_open(const struct ddprun_settings* settings, ddprun_handle** handle) {
  *handle = NULL;
  pthread_once(&fork_once, watch_forks);
  close_on_exec(settings->socket_fd);
  close_on_exec(settings->page_fd);
  int error = settings->socket_fd >= 0 ? check_socket(settings->socket_fd) : 0;
  if (error) return error;
  ddprun_handle* const d = make_handle(settings);
  if (d == NULL) return ddprun_set_error(DDPRUN_EIO, "out of memory");
  d->fork_count = atomic_load(&fork_count);
  error = ddprun_page_open(&d->page, settings->page_fd, settings->resume_step, d->now_ns());
  if (error) {
    free_handle(d);
    return error;
  }
  error = send_hello(d);
  if (!error && d->socket >= 0) error = ddprun_reader_start(d);
  if (error) {
    ddprun_page_close(&d->page);
    free_handle(d);
    return error;
  }
  *handle = d;
  return 0;
}

void ddprun_close(ddprun_handle* handle) {
  if (handle->socket >= 0) {
    ddprun_reader_stop(handle);
    close(handle->socket);
  }
  ddprun_exchange_free(handle);
  ddprun_page_close(&handle->page);
  pthread_mutex_destroy(&handle->exchange.mutex);
  pthread_mutex_destroy(&handle->training.mutex);
  pthread_mutex_destroy(&handle->checkpoint.mutex);
  pthread_cond_destroy(&handle->exchange.settled);
  pthread_cond_destroy(&handle->training.answered);
  pthread_cond_destroy(&handle->checkpoint.settled);
  free_handle(handle);
}

int ddprun_rank(const ddprun_handle* handle) {
  return handle->rank;
}
int ddprun_world_size(const ddprun_handle* handle) {
  return handle->world_size;
}
int ddprun_local_rank(const ddprun_handle* handle) {
  return handle->local_rank;
}
int ddprun_local_world_size(const ddprun_handle* handle) {
  return handle->local_world_size;
}
int64_t ddprun_generation(const ddprun_handle* handle) {
  return handle->generation;
}
const char* ddprun_job_id(const ddprun_handle* handle) {
  return handle->job_id;
}
int ddprun_is_launched(const ddprun_handle* handle) {
  return handle->socket >= 0;
}
const char* ddprun_run_dir(const ddprun_handle* handle) {
  return handle->run_dir;
}
const char* ddprun_state_dir(const ddprun_handle* handle) {
  return handle->state_dir;
}
const char* ddprun_resume_from(const ddprun_handle* handle) {
  return handle->resume_from;
}
int64_t ddprun_resume_step(const ddprun_handle* handle) {
  return handle->resume_step;
}
