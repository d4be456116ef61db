/* Sums that are about to be queued: the work and its arrays. Holds references to the arrays'
 * storages until the work is queued, because queuing may release the host lock, and another thread
 * may then replace an array's memory. Ownership: mpg_queued_sums_let_go releases the references,
 * and frees the work unless it was queued. Threads: callers hold the host lock. */
#ifndef MPG_COMM_QUEUED_SUMS_H
#define MPG_COMM_QUEUED_SUMS_H

#include "base/memory.h"
#include "op/submit.h"

typedef struct mpg_queued_sums {
  void *work;
  mpg_array_use *uses; /* owned references */
  uint32_t num_uses;
  bool queued; /* the queue owns the work */
} mpg_queued_sums;

/* Reserves memory for `count` uses. mpg_queued_sums_hold adds a use and retains its storage. */
static inline mpg_status mpg_queued_sums_room(mpg_queued_sums *q, uint32_t count) {
  q->uses = mpg_malloc(count * sizeof *q->uses);
  return q->uses ? MPG_OK : mpg_out_of_host_memory(count * sizeof *q->uses);
}
static inline void mpg_queued_sums_hold(mpg_queued_sums *q, mpg_array_use use) {
  q->uses[q->num_uses++] = use;
  mpg_storage_retain(use.storage);
}
static inline void mpg_queued_sums_let_go(mpg_queued_sums *q) {
  for (uint32_t i = 0; i < q->num_uses; i++) mpg_storage_release(q->uses[i].storage);
  mpg_free(q->uses);
  if (!q->queued) mpg_free(q->work);
}

#endif
