/* All-reduce over ranks: sums of arrays in host memory. Each rank has one array and gets the sum.
 *
 * Each rank sums one part, in rank order, and sends the sums to all other ranks (reduce-scatter,
 * then all-gather). This is pipelined in pieces that fit into a core's cache: while one piece is
 * summed, the next ones arrive and the previous ones are sent. Only MPI copies data. Small arrays
 * are sent to all ranks, and each rank sums them. So all ranks get the bits of sequential addition,
 * for any number of ranks. The setting `any_order` leaves the sum to MPI.
 *
 * All ranks run the same sums in the same order, one at a time, and compare numbers and sizes.
 * Unlike transfers, sums do not advance in the engine, but in the thread that runs them, which
 * waits.
 *
 * Ownership: memory belongs to the caller; buffers for pieces are reused. Threads: running work of
 * one queue.
 */
#ifndef MPG_DEVICE_RANKS_ALL_REDUCE_H
#define MPG_DEVICE_RANKS_ALL_REDUCE_H

#include "device/ranks/ranks.h"

typedef struct mpg_all_reduce {
  uint64_t number;    /* mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  const char *source; /* `count` items of `item` bytes */
  char *target;       /* may be the same memory as the source */
  size_t count, item;
  uint32_t dtype; /* an mpg_dtype */
  uint32_t line;  /* key of the line that queued it; 0 if unknown */
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
  mpg_rank_step step;
  /* Sums parts[rank] from first to last. `sum` may be one of them. */
  mpg_status (*add)(void *state, const char *const *parts, char *sum, size_t count);
  void *state;
} mpg_all_reduce;

enum { MPG_ALL_REDUCE_NUMBERS = 2 };

mpg_status mpg_all_reduce_run(const mpg_all_reduce *work);
/* Notifies the other ranks of a failure instead of summing, with this thread's error text. */
void mpg_all_reduce_fail(const mpg_all_reduce *work);

/* Polls `look` until it reports that a joint operation of all ranks is done, for operations that do
 * not use this engine, such as NCCL's. Deadlock detection treats the thread as working meanwhile.
 * Fails if `look` fails or if a rank is lost. */
mpg_status mpg_all_reduce_until(mpg_status (*look)(void *state, bool *done), void *state);

/* Returns memory for packed arrays, reused by the next call; NULL if out of memory. */
char *mpg_all_reduce_room(size_t size);

#endif
