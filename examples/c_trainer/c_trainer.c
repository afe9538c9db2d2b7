// Fits y = 3x + 2 by gradient descent: the smallest trainer that restarts where it was.
//   ddprun --nproc 2 -- build/bin/examples/c_trainer [steps] [microseconds per step]
#define _DEFAULT_SOURCE
#include <ddprun.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static double weights[2];  // slope and offset: the whole state

// Where rank r keeps its state inside a checkpoint.
static const char* file_name(int rank, char* name, size_t size) {
  snprintf(name, size, "line-%d.bin", rank);
  return name;
}

static int load(const ddprun_handle* d, int rank) {
  char path[4200], name[32];
  snprintf(path, sizeof path, "%s/%s", ddprun_resume_from(d), file_name(rank, name, sizeof name));
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

static void save(ddprun_handle* d, int64_t step) {
  char name[32];
  ddprun_checkpoint_begin(d, step);
  ddprun_checkpoint_write(d, step, file_name(ddprun_rank(d), name, sizeof name), weights,
                          sizeof weights);
  if (ddprun_checkpoint_finish(d, step) != 0) fprintf(stderr, "%s\n", ddprun_error(d));
}

int main(int argc, char** argv) {
  int64_t total = argc > 1 ? atoll(argv[1]) : 500;
  useconds_t pause = argc > 2 ? (useconds_t)atoi(argv[2]) : 0;
  ddprun_handle* d;
  // All ranks hold the same state: one that is new, in a world that has grown, takes rank 0's.
  if (ddprun_init(&d) != 0 || (ddprun_resume_from(d) && !load(d, ddprun_rank(d)) && !load(d, 0))) {
    fprintf(stderr, "c_trainer cannot start: %s\n", d ? "bad checkpoint" : ddprun_error(d));
    return 1;
  }
  ddprun_progress_info(d, 1, 1, total, 0);
  ddprun_ready(d);
  int64_t step = ddprun_resume_step(d), saved = step;
  for (int stop = 0; step < total && !stop;) {
    double loss = train_step(++step);
    usleep(pause);
    int todo = ddprun_step_done(d, step, loss);
    if (todo & DDPRUN_CHECKPOINT || step % 50 == 0 || step == total) save(d, saved = step);
    stop = todo & DDPRUN_STOP;
  }
  if (ddprun_checkpoint_in_flight(d)) ddprun_checkpoint_wait(d, saved, 30);
  printf("rank %d of %d: y = %.17g x + %.17g after step %lld\n", ddprun_rank(d),
         ddprun_world_size(d), weights[0], weights[1], (long long)step);
  return ddprun_finish(d) == 0 ? 0 : 1;
}
