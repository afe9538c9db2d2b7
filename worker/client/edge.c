// The agreed step (proto/worker_protocol.md): a checkpoint on demand or a stop happens after the
// same step on every rank, though the ranks are not at the same instruction.
//
// What makes it safe is one mutex: the training thread advances `completed` and the reader computes
// an edge under it, so an edge promised as completed + 1 is still ahead when it is promised. The
// training thread cannot pass an edge whose answer is missing, hence every rank knows the
// agreed step, the largest edge, before it reaches it.
//
// The wait at an edge has no deadline of its own: a rank that went on alone would break the
// agreement. Its bound is the launcher, whose end or abort ends this process (socket.c).
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>

#include "worker/client/internal.h"

// The program completed the last step that it announced. It ends by itself and writes its last
// checkpoint without being asked, on every rank, so nothing is asked for at this edge and nobody
// waits.
static int at_last_step(const struct ddprun_training* t) {
  return t->total_steps > 0 && t->completed == t->total_steps;
}

// No step of the training thread is running or will run, as far as this library can know.
static int stands_still(const struct ddprun_training* t) {
  return t->waiting || t->stopping || t->finished || at_last_step(t);
}

static int must_wait(const struct ddprun_training* t) {
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    const struct ddprun_request* const r = &t->requests[i];
    if (r->state == kDdprunRequestAsked && r->edge <= t->completed) return 1;
  }
  return 0;
}

static struct ddprun_request* find_request(struct ddprun_training* t, int64_t id) {
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state != kDdprunRequestFree && r->id == id) return r;
  }
  return NULL;
}

// NULL when the table is full.
static struct ddprun_request* add_request(struct ddprun_training* t, int64_t id, int stop) {
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state != kDdprunRequestFree) continue;
    *r = (struct ddprun_request){.state = kDdprunRequestAsked, .id = id, .stop = stop};
    r->edge = stands_still(t) ? t->completed : t->completed + 1;
    ++t->request_count;
    return r;
  }
  return NULL;
}

static void free_request(struct ddprun_training* t, struct ddprun_request* r) {
  r->state = kDdprunRequestFree;
  --t->request_count;
}

// A request that cannot be kept would leave the other ranks waiting for ever; this is our own or
// the launcher's bug, so it is said and the generation ends.
static void give_up(ddprun_handle* d) {
  char buffer[256];
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Failed");
  ddprun_packet_text(&packet, "KIND", "error");
  ddprun_packet_text(&packet, "MESSAGE", "libddprun: more than 8 unanswered edge requests");
  ddprun_send(d, &packet, 0);
  ddprun_exit();
}

void ddprun_edge_requested(ddprun_handle* d, int64_t id, int stop) {
  struct ddprun_training* const t = &d->training;
  pthread_mutex_lock(&t->mutex);
  struct ddprun_request* r = find_request(t, id);
  if (r == NULL) r = add_request(t, id, stop);
  if (r != NULL && r->state == kDdprunRequestAsked) r->answer_due = 1;
  pthread_mutex_unlock(&t->mutex);
  if (r == NULL) give_up(d);
}

void ddprun_edge_agreed(ddprun_handle* d, int64_t id, int64_t step, int stop) {
  struct ddprun_training* const t = &d->training;
  int full = 0;
  pthread_mutex_lock(&t->mutex);
  struct ddprun_request* r = find_request(t, id);
  if (r == NULL && step > t->last_step) {
    r = add_request(t, id, stop);
    full = r == NULL;
  }
  if (r != NULL) {
    r->target = step;
    r->stop = stop;
    if (step == t->completed && step == t->last_step && !t->waiting) {
      free_request(t, r);  // the program stands still and began this checkpoint unasked
    } else {
      const int passed = t->finished || step < t->completed;
      r->state = passed ? kDdprunRequestMissed : kDdprunRequestAgreed;
    }
    pthread_cond_broadcast(&t->answered);
  }
  pthread_mutex_unlock(&t->mutex);
  if (full) give_up(d);
}

static int send_edge(ddprun_handle* d, const struct ddprun_request* r) {
  char buffer[128];
  struct ddprun_packet packet;
  ddprun_packet_begin(&packet, buffer, sizeof buffer, "Edge");
  ddprun_packet_int(&packet, "ID", r->id);
  ddprun_packet_int(&packet, "STEP", r->edge);
  return ddprun_send(d, &packet, 0);
}

static const char kMissed[] = "the program did not begin this checkpoint";

int ddprun_edge_flush(ddprun_handle* d) {
  struct ddprun_training* const t = &d->training;
  int owes = 0;
  pthread_mutex_lock(&t->mutex);
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state == kDdprunRequestFree) continue;
    if (r->answer_due) {
      r->answer_due = send_edge(d, r) == DDPRUN_ETIMEOUT;
      owes |= r->answer_due;
    }
    if (r->state == kDdprunRequestMissed) {
      if (ddprun_send_checkpoint_failed(d, r->target, kMissed, 0) == DDPRUN_ETIMEOUT) {
        owes = 1;
      } else {
        free_request(t, r);
      }
    }
  }
  pthread_mutex_unlock(&t->mutex);
  return owes;
}

enum { kMissedMax = kDdprunRequestsMax + 1 };

// REQUIRES: the mutex is held. Takes the steps whose CheckpointFailed the caller must send.
static int take_missed(struct ddprun_training* t, int64_t* steps) {
  int count = 0;
  if (t->due_step >= 0 && (t->due_step < t->completed || t->finished)) {
    steps[count++] = t->due_step;
    t->due_step = -1;
  }
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state != kDdprunRequestMissed) continue;
    steps[count++] = r->target;
    free_request(t, r);
  }
  return count;
}

static void send_missed(ddprun_handle* d, const int64_t* steps, int count) {
  for (int i = 0; i < count; ++i) ddprun_send_checkpoint_failed(d, steps[i], kMissed, 1);
}

// REQUIRES: the mutex is held. What the agreed requests ask for at the edge `completed`.
static int take_due(struct ddprun_training* t) {
  int flags = 0;
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state != kDdprunRequestAgreed) continue;
    if (r->target < t->completed) {
      r->state = kDdprunRequestMissed;
    } else if (r->target == t->completed && !at_last_step(t)) {
      flags |= DDPRUN_CHECKPOINT | (r->stop ? DDPRUN_STOP : 0);
      free_request(t, r);
    }
  }
  if (flags & DDPRUN_STOP) t->stopping = 1;
  if (t->last_step == t->completed) flags &= ~DDPRUN_CHECKPOINT;  // begun before step_done
  if (flags & DDPRUN_CHECKPOINT) t->due_step = t->last_step = t->completed;
  return flags;
}

int ddprun_edge_pause(ddprun_handle* d) {
  struct ddprun_training* const t = &d->training;
  int64_t missed[kMissedMax];
  const int phase = ddprun_page_phase(&d->page, DDPRUN_PHASE_CHECKPOINT, NULL, d->now_ns());
  pthread_mutex_lock(&t->mutex);
  t->waiting = 1;
  while (!at_last_step(t) && must_wait(t)) pthread_cond_wait(&t->answered, &t->mutex);
  t->waiting = 0;
  const int flags = take_due(t);
  const int missed_count = take_missed(t, missed);
  pthread_mutex_unlock(&t->mutex);
  ddprun_page_phase(&d->page, phase, NULL, d->now_ns());
  send_missed(d, missed, missed_count);
  return flags;
}

void ddprun_edge_begun(ddprun_handle* d, int64_t step) {
  struct ddprun_training* const t = &d->training;
  pthread_mutex_lock(&t->mutex);
  if (t->due_step == step) t->due_step = -1;
  if (t->last_step < step) t->last_step = step;
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    // At a step still to be completed the request stays: step_done may have a stop to return.
    const int answered = r->state == kDdprunRequestAgreed && r->target == step;
    if (answered && step <= t->completed) free_request(t, r);
  }
  pthread_mutex_unlock(&t->mutex);
}

void ddprun_edge_finish(ddprun_handle* d) {
  struct ddprun_training* const t = &d->training;
  int64_t missed[kMissedMax];
  pthread_mutex_lock(&t->mutex);
  t->finished = 1;
  for (int i = 0; i < kDdprunRequestsMax; ++i) {
    struct ddprun_request* const r = &t->requests[i];
    if (r->state == kDdprunRequestAgreed) r->state = kDdprunRequestMissed;
  }
  const int missed_count = take_missed(t, missed);
  pthread_mutex_unlock(&t->mutex);
  send_missed(d, missed, missed_count);
}
