#include "worker/client/page.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "worker/client/ddprun.h"
#include "worker/client/error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the page is little-endian");
_Static_assert(offsetof(struct ddprun_page_words, step) == 16, "layout of the protocol");
_Static_assert(offsetof(struct ddprun_page_words, collective_name) == 56, "layout of the protocol");
_Static_assert(offsetof(struct ddprun_page_words, text) == 120, "layout of the protocol");
_Static_assert(sizeof(struct ddprun_page_words) == 256, "layout of the protocol");

// A release store, so that nobody sees a new word without the odd sequence before it.
static void put(_Atomic uint64_t* word, uint64_t value) {
  atomic_store_explicit(word, value, memory_order_release);
}

// Between these two, readers know that the words are not consistent.
static void begin_change(struct ddprun_page* page, int64_t now_ns) {
  pthread_mutex_lock(&page->mutex);
  struct ddprun_page_words* const words = page->words;
  const uint32_t sequence = atomic_load_explicit(&words->sequence, memory_order_relaxed);
  atomic_store_explicit(&words->sequence, sequence + 1, memory_order_relaxed);
  put(&words->changed_ns, (uint64_t)now_ns);
}

static void end_change(struct ddprun_page* page) {
  struct ddprun_page_words* const words = page->words;
  const uint32_t sequence = atomic_load_explicit(&words->sequence, memory_order_relaxed);
  atomic_store_explicit(&words->sequence, sequence + 1, memory_order_release);
  pthread_mutex_unlock(&page->mutex);
}

// Copies text, cut to leave room for the zero; the rest of the words is zeroed.
static void store_text(_Atomic uint64_t* words, size_t bytes, const char* text) {
  size_t left = strnlen(text, bytes - 1);
  for (size_t i = 0; i < bytes / 8; ++i) {
    uint64_t word = 0;
    const size_t part = left < 8 ? left : 8;
    if (part > 0) memcpy(&word, text + 8 * i, part);
    left -= part;
    put(&words[i], word);
  }
}

static void* map_page(int page_fd) {
  struct stat status;
  if (fstat(page_fd, &status) != 0 || status.st_size != kDdprunPageBytes) {
    ddprun_set_error(DDPRUN_EPROTO, "DDPRUN_PAGE_FD: descriptor %d is not a page of %d bytes",
                     page_fd, kDdprunPageBytes);
    return NULL;
  }
  void* const memory = mmap(NULL, kDdprunPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
  if (memory == MAP_FAILED) {
    ddprun_set_errno(DDPRUN_EPROTO, errno, "DDPRUN_PAGE_FD: cannot map descriptor %d", page_fd);
    return NULL;
  }
  const uint32_t magic = *(const uint32_t*)memory;
  if (magic != 0 && magic != kDdprunPageMagic) {
    munmap(memory, kDdprunPageBytes);
    ddprun_set_error(DDPRUN_EPROTO, "DDPRUN_PAGE_FD: descriptor %d holds something else", page_fd);
    return NULL;
  }
  return memory;
}

int ddprun_page_open(struct ddprun_page* page, int page_fd, int64_t step, int64_t now_ns) {
  page->mapped = page_fd >= 0;
  page->words = page->mapped ? map_page(page_fd) : calloc(1, kDdprunPageBytes);
  if (page->words == NULL) {
    return page->mapped ? DDPRUN_EPROTO : ddprun_set_error(DDPRUN_EIO, "out of memory");
  }
  pthread_mutex_init(&page->mutex, NULL);
  begin_change(page, now_ns);
  atomic_store_explicit(&page->words->magic, kDdprunPageMagic, memory_order_release);
  atomic_store_explicit(&page->words->version, kDdprunPageVersion, memory_order_release);
  put(&page->words->step, (uint64_t)step);
  end_change(page);
  return 0;
}

void ddprun_page_close(struct ddprun_page* page) {
  if (page->mapped) {
    munmap(page->words, kDdprunPageBytes);
  } else {
    free(page->words);
  }
  pthread_mutex_destroy(&page->mutex);
}

void ddprun_page_step(struct ddprun_page* page, int64_t step, double loss, int64_t now_ns) {
  uint64_t bits;
  memcpy(&bits, &loss, sizeof bits);
  begin_change(page, now_ns);
  put(&page->words->step, (uint64_t)step);
  put(&page->words->loss, bits);
  end_change(page);
}

int ddprun_page_phase(struct ddprun_page* page, int phase, const char* text, int64_t now_ns) {
  begin_change(page, now_ns);
  const uint32_t before = atomic_load_explicit(&page->words->phase, memory_order_relaxed);
  atomic_store_explicit(&page->words->phase, (uint32_t)phase, memory_order_release);
  if (text != NULL) store_text(page->words->text, kDdprunPageTextBytes, text);
  end_change(page);
  return (int)before;
}

void ddprun_page_collective(struct ddprun_page* page, const char* name, uint64_t sequence,
                            int finished, int64_t now_ns) {
  begin_change(page, now_ns);
  put(finished ? &page->words->collective_finished : &page->words->collective_started, sequence);
  // The name is that of the last one started; a late end of an earlier one leaves it alone.
  if (!finished) store_text(page->words->collective_name, kDdprunPageNameBytes, name);
  end_change(page);
}
