// The writer's side of the step page (proto/worker_protocol.md, "Step page"): 4,096 bytes shared
// with the keeper, guarded by a sequence lock. Threads of this process take turns through `mutex`;
// readers of other processes never hold up the writer. All words are written as atomics, so that a
// reader that retries on an odd or changed sequence never sees a torn field.
#ifndef DDPRUN_WORKER_CLIENT_PAGE_H_
#define DDPRUN_WORKER_CLIENT_PAGE_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
  kDdprunPageBytes = 4096,
  kDdprunPageMagic = 0x50444450,
  kDdprunPageVersion = 1,
  kDdprunPageNameBytes = 64,
  kDdprunPageTextBytes = 136,
};

struct ddprun_page_words {
  _Atomic uint32_t magic;
  _Atomic uint32_t version;
  _Atomic uint32_t sequence;
  _Atomic uint32_t phase;
  _Atomic uint64_t step;
  _Atomic uint64_t changed_ns;
  _Atomic uint64_t loss;  // the bits of an f64
  _Atomic uint64_t collective_started;
  _Atomic uint64_t collective_finished;
  _Atomic uint64_t collective_name[kDdprunPageNameBytes / 8];
  _Atomic uint64_t text[kDdprunPageTextBytes / 8];
};

struct ddprun_page {
  pthread_mutex_t mutex;
  struct ddprun_page_words* words;
  int mapped;  // else private memory: run by hand, or a launcher without a page
};

// Maps page_fd, or takes private memory when it is negative. Returns 0 or a DDPRUN_E… code.
int ddprun_page_open(struct ddprun_page* page, int page_fd, int64_t step, int64_t now_ns);
void ddprun_page_close(struct ddprun_page* page);

void ddprun_page_step(struct ddprun_page* page, int64_t step, double loss, int64_t now_ns);
// Returns the phase before. text NULL leaves the text as it is.
int ddprun_page_phase(struct ddprun_page* page, int phase, const char* text, int64_t now_ns);
void ddprun_page_collective(struct ddprun_page* page, const char* name, uint64_t sequence,
                            int finished, int64_t now_ns);

#endif  // DDPRUN_WORKER_CLIENT_PAGE_H_
