// What the training thread says while it works: completed steps, phases, collectives. The usual
// step costs two uncontended locks and one look at the clock, and no system call.
#include <inttypes.h>

#include "worker/client/internal.h"

// The facts are sent as they are now; a full socket drops the packet, and the next step tries
// again.
static int send_progress(ddprun_handle* d, int64_t step, double loss) {
  char buffer[512];
  struct ddprun_packet packet;
  struct ddprun_training* const t = &d->training;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Progress");
  ddprun_packet_int(&packet, "STEP", step);
  ddprun_packet_double(&packet, "LOSS", loss);
  pthread_mutex_lock(&t->mutex);
  if (t->has_info) {
    ddprun_packet_int(&packet, "EPOCH", t->epoch);
    ddprun_packet_double(&packet, "SAMPLES_PER_S", t->samples_per_second);
    if (t->epochs > 0) ddprun_packet_int(&packet, "EPOCHS", t->epochs);
    if (t->total_steps > 0) ddprun_packet_int(&packet, "TOTAL_STEPS", t->total_steps);
  }
  pthread_mutex_unlock(&t->mutex);
  return ddprun_send(d, &packet, 0);
}

int ddprun_step_done(ddprun_handle* handle, int64_t step, double loss) {
  const int error = ddprun_usable(handle);
  if (error) return error;
  struct ddprun_training* const t = &handle->training;
  pthread_mutex_lock(&t->mutex);
  const int64_t expected = t->completed + 1;
  if (step == expected) t->completed = step;
  const int pending = t->request_count > 0 || t->due_step >= 0;
  pthread_mutex_unlock(&t->mutex);
  if (step != expected) {
    return ddprun_set_error(DDPRUN_EINVAL,
                            "ddprun_step_done: step %" PRId64 " where %" PRId64
                            " is next (steps go on from ddprun_resume_step)",
                            step, expected);
  }
  const int64_t now_ns = handle->now_ns();
  ddprun_page_step(&handle->page, step, loss, now_ns);
  if (!t->progress_sent || now_ns - t->progress_ns >= kDdprunProgressNs) {
    if (send_progress(handle, step, loss) == 0) {
      t->progress_sent = 1;
      t->progress_ns = now_ns;
    }
  }
  return pending ? ddprun_edge_pause(handle) : 0;
}

void ddprun_progress_info(ddprun_handle* handle, int64_t epoch, int64_t epochs, int64_t total_steps,
                          double samples_per_second) {
  if (ddprun_usable(handle)) return;
  struct ddprun_training* const t = &handle->training;
  pthread_mutex_lock(&t->mutex);
  t->has_info = 1;
  t->epoch = epoch;
  t->epochs = epochs;
  t->total_steps = total_steps;
  t->samples_per_second = samples_per_second;
  pthread_mutex_unlock(&t->mutex);
}

void ddprun_phase(ddprun_handle* handle, int phase, const char* text) {
  if (ddprun_usable(handle)) return;
  ddprun_page_phase(&handle->page, phase, text, handle->now_ns());
}

void ddprun_collective(ddprun_handle* handle, const char* name, uint64_t sequence, int finished) {
  if (ddprun_usable(handle)) return;
  ddprun_page_collective(&handle->page, name ? name : "", sequence, finished, handle->now_ns());
}
