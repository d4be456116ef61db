/* All-reduce over ranks: sums of arrays in host memory. Each rank has one array and gets the sum.
 *
 * A large sum is a reduce-scatter followed by an all-gather: each rank sums one part of the arrays
 * and sends that part of the sum to all other ranks. This is pipelined in pieces that fit into a
 * core's cache: while one piece is summed, the next pieces arrive and the previous sums are sent.
 * The data is copied only by MPI. A small array is sent to all ranks, and each rank computes the
 * whole sum. Both algorithms add in rank order, so the results are bit-identical to sequential
 * addition. If the setting `any_order` is on, MPI computes the sums of large arrays.
 *
 * All ranks run the same sums in the same order, one at a time. They compare the numbers and sizes
 * of their sums, which detects ranks that run different programs. Unlike transfers, which the
 * engine advances, a sum advances only in the thread that runs it.
 *
 * Ownership: the caller owns the arrays; the engine owns the piece buffers and reuses them.
 * Threads: running work of one queue.
 */
#ifndef MPG_DEVICE_RANKS_ALL_REDUCE_H
#define MPG_DEVICE_RANKS_ALL_REDUCE_H

#include "device/ranks/ranks.h"

typedef struct mpg_all_reduce {
  uint64_t number;    /* result of mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  const char *source; /* `count` elements of `item` bytes each */
  char *target;       /* may be the same memory as the source */
  size_t count, item;
  uint32_t dtype; /* an mpg_dtype */
  uint32_t line;  /* key of the script line that queued the sum; 0 if unknown */
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
  mpg_rank_step step;
  /* Sets sum[i] to the sum of parts[rank][i] over all ranks, added in rank order, for `count`
   * elements. `sum` may be one of the parts. */
  mpg_status (*add)(void *state, const char *const *parts, char *sum, size_t count);
  void *state;
} mpg_all_reduce;

enum { MPG_ALL_REDUCE_NUMBERS = 2 };

mpg_status mpg_all_reduce_run(const mpg_all_reduce *work);
/* Sends this thread's error text to the other ranks, so that they do not wait for this rank. Called
 * instead of mpg_all_reduce_run after a failure. */
void mpg_all_reduce_fail(const mpg_all_reduce *work);

/* Calls `look` repeatedly until it sets *done. Used to wait for operations of all ranks that bypass
 * the engine, such as NCCL collectives. Deadlock detection treats the running device as busy during
 * the wait. Fails if `look` fails or if a rank is lost. */
mpg_status mpg_all_reduce_until(mpg_status (*look)(void *state, bool *done), void *state);

/* Returns a buffer of `size` bytes for packed arrays, valid until the next call. Returns NULL if
 * out of memory. */
char *mpg_all_reduce_room(size_t size);

#endif
