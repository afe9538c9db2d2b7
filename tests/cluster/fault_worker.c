// Worker of the fault runner: fits y = 3x + 2 like examples/c_trainer, and leaves a trace of when
// it ran.
//   fault_worker STEPS MICROSECONDS_PER_STEP [TRACE_FOLDER]
// Each step appends a monotonic time (8 bytes, nanoseconds; one clock for all nodes of a lab) to
// TRACE_FOLDER/g<generation>-r<rank>-<node>-<pid>, so that generations that overlap are seen
// whatever the coordinator thinks. All ranks hold the same state, so a rank that is new in a grown
// world takes that of rank 0.
#define _DEFAULT_SOURCE
#include <ddprun.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double weights[2];  // slope and offset: the whole state

static int load_file(const ddprun_handle* d, int rank) {
  char path[4200];
  snprintf(path, sizeof path, "%s/line-%d.bin", ddprun_resume_from(d), rank);
  FILE* file = fopen(path, "rb");
  int loaded = file != NULL && fread(weights, sizeof weights, 1, file) == 1;
  if (file) fclose(file);
  return loaded;
}

static double train_step(int64_t step) {  // one sample x in -1 … 1; returns the loss
  double x = (double)(step * 7 % 21) / 10 - 1, error = weights[0] * x + weights[1] - (3 * x + 2);
  weights[0] -= 0.1 * error * x;
  weights[1] -= 0.1 * error;
  return error * error;
}

static int open_trace(const ddprun_handle* d, const char* folder) {
  char path[4200], node[65] = "";
  if (folder == NULL) return open("/dev/null", O_WRONLY);
  gethostname(node, sizeof node - 1);
  const char* generation = getenv("DDPRUN_GENERATION");
  snprintf(path, sizeof path, "%s/g%s-r%d-%s-%d", folder, generation, ddprun_rank(d), node,
           (int)getpid());
  return open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
}

static int leave_trace(int trace) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t nanoseconds = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  return write(trace, &nanoseconds, sizeof nanoseconds) == sizeof nanoseconds;
}

// 1 when the checkpoint is on its way.
static int save(ddprun_handle* d, int64_t step) {
  char name[32];
  snprintf(name, sizeof name, "line-%d.bin", ddprun_rank(d));
  if (ddprun_checkpoint_begin(d, step) == 0) {
    ddprun_checkpoint_write(d, step, name, weights, sizeof weights);
    if (ddprun_checkpoint_finish(d, step) == 0) return 1;  // says what write has met, too
  }
  fprintf(stderr, "step %lld: %s\n", (long long)step, ddprun_error(d));
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int64_t total = atoll(argv[1]);
  ddprun_handle* d;
  if (ddprun_init(&d) != 0 ||
      (ddprun_resume_from(d) && !load_file(d, ddprun_rank(d)) && !load_file(d, 0))) {
    fprintf(stderr, "fault_worker cannot start: %s\n", d ? "bad checkpoint" : ddprun_error(d));
    return 1;
  }
  int trace = open_trace(d, argc > 3 ? argv[3] : NULL);
  if (trace < 0 || !leave_trace(trace)) return 1;
  ddprun_progress_info(d, 1, 1, total, 0);
  ddprun_ready(d);
  int64_t step = ddprun_resume_step(d), saved = step;
  for (int stop = 0; step < total && !stop;) {
    double loss = train_step(++step);
    usleep((useconds_t)atoi(argv[2]));
    if (!leave_trace(trace)) return 1;
    int todo = ddprun_step_done(d, step, loss);
    if (todo & DDPRUN_CHECKPOINT || step % 20 == 0 || step == total) {
      if (save(d, step)) saved = step;
    }
    stop = todo & DDPRUN_STOP;
  }
  if (ddprun_checkpoint_in_flight(d)) ddprun_checkpoint_wait(d, saved, 30);
  if (step == total) {
    printf("final slope %.17g offset %.17g step %lld\n", weights[0], weights[1], (long long)step);
  }
  return ddprun_finish(d) == 0 ? 0 : 1;
}
