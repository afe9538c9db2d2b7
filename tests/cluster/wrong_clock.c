// LD_PRELOAD library: the real-time clock of a process is off by WRONG_CLOCK_SECONDS, the other
// clocks are right.
//
// Waits until a moment of the real-time clock are translated back, since the kernel's clock is
// right: those of pthreads, and futex calls, which abseil makes itself. (libfaketime leaves the
// latter out, and whoever uses gRPC then stands still.)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_seconds(void) {
  static long offset = 0;
  static int known = 0;
  if (!known) {
    const char* text = getenv("WRONG_CLOCK_SECONDS");
    offset = text ? atol(text) : 0;
    known = 1;
  }
  return offset;
}

// dlsym gives an object pointer, which ISO C does not convert to a function's.
static void find(void* function, size_t size, const char* name) {
  void* found = NULL;
  memcpy(&found, function, size);
  if (found != NULL) return;
  found = dlsym(RTLD_NEXT, name);
  memcpy(function, &found, size);
}

typedef long (*raw_function)(long, ...);
static long raw(long number, long a, long b, long c, long d, long e, long f) {
  static raw_function next;
  find(&next, sizeof next, "syscall");
  return next(number, a, b, c, d, e, f);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = (int)raw(SYS_clock_gettime, clock, (long)now, 0, 0, 0, 0);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += offset_seconds();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  (void)zone;
  struct timespec time;
  if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

static const struct timespec* translated(const struct timespec* deadline, struct timespec* store) {
  if (deadline == NULL) return NULL;
  *store = *deadline;
  store->tv_sec -= offset_seconds();
  if (store->tv_sec < 0) store->tv_sec = store->tv_nsec = 0;
  return store;
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long part[6];
  for (int i = 0; i < 6; ++i) part[i] = va_arg(list, long);
  va_end(list);
  struct timespec store;
  if (number == SYS_futex && (part[1] & FUTEX_CLOCK_REALTIME)) {
    part[3] = (long)translated((const struct timespec*)part[3], &store);
  } else if (number == SYS_clock_gettime) {
    return clock_gettime((clockid_t)part[0], (struct timespec*)part[1]);
  }
  return raw(number, part[0], part[1], part[2], part[3], part[4], part[5]);
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex,
                           const struct timespec* deadline) {
  // Whether a condition variable uses the monotonic clock cannot be asked; its moments lie far
  // before those of the real one.
  struct timespec store, now;
  static int (*next)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  find(&next, sizeof next, "pthread_cond_timedwait");
  raw(SYS_clock_gettime, CLOCK_REALTIME, (long)&now, 0, 0, 0, 0);
  int real = deadline->tv_sec > now.tv_sec / 2;
  return next(cond, mutex, real ? translated(deadline, &store) : deadline);
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* deadline) {
  struct timespec store;
  static int (*next)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  find(&next, sizeof next, "pthread_cond_clockwait");
  return next(cond, mutex, clock,
              clock == CLOCK_REALTIME ? translated(deadline, &store) : deadline);
}

int sem_timedwait(sem_t* semaphore, const struct timespec* deadline) {
  struct timespec store;
  static int (*next)(sem_t*, const struct timespec*);
  find(&next, sizeof next, "sem_timedwait");
  return next(semaphore, translated(deadline, &store));
}
