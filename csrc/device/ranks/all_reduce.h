/* Sums over ranks of arrays in host memory: each rank has one, and gets the sum.
 *
 * Each rank adds up one part, in the order of the ranks, and sends the sums to all others. That
 * goes on in pieces which fit into a core's cache: while one is added up, the next ones come and
 * the last ones go. Nothing is copied but by MPI. Small arrays go to all, and each adds them up. So
 * all ranks have the bits of adding one after the other, whatever their number. The setting
 * `any_order` leaves it to MPI.
 *
 * All ranks run the same sums in the same order, one at a time; numbers and sizes are compared.
 * Unlike transfers they don't advance in the engine, but in the thread that runs them, which waits.
 *
 * Ownership: memory is the caller's; rooms for pieces are kept. Threads: running work of one queue.
 */
#ifndef MPG_DEVICE_RANKS_ALL_REDUCE_H
#define MPG_DEVICE_RANKS_ALL_REDUCE_H

#include "device/ranks/ranks.h"

typedef struct mpg_all_reduce {
  uint64_t number;    /* mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  const char *source; /* `count` items of `item` bytes */
  char *target;       /* the same memory, or other */
  size_t count, item;
  uint32_t dtype; /* of the items, its number */
  uint32_t line;  /* key of the line that queued it; 0 if unknown */
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
  mpg_rank_step step;
  /* Adds up parts[rank], from first to last. `sum` may be one of them. */
  mpg_status (*add)(void *state, const char *const *parts, char *sum, size_t count);
  void *state;
} mpg_all_reduce;

enum { MPG_ALL_REDUCE_NUMBERS = 2 };

mpg_status mpg_all_reduce_run(const mpg_all_reduce *work);
/* Instead: tells the others that it failed, with this thread's error text. */
void mpg_all_reduce_fail(const mpg_all_reduce *work);

/* Waits until `look` says that something is done which goes on between all ranks by other means,
 * and counts as work meanwhile. Fails when it does, or when a rank is lost. */
mpg_status mpg_all_reduce_until(mpg_status (*look)(void *state, bool *done), void *state);

/* Memory for arrays that travel as one; the former call's. NULL: out of memory. */
char *mpg_all_reduce_room(size_t size);

#endif
