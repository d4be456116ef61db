/* All-reduce over ranks: sums of arrays in host memory. Each rank has one array and gets the sum.
 *
 * Reduce-scatter, then all-gather: each rank sums one part of the arrays and sends the sums to all
 * other ranks. This is pipelined in pieces that fit into a core's cache: while one piece is summed,
 * the next ones arrive and the previous ones are sent. Only MPI copies data. A small array is sent
 * to all ranks, and each rank computes the whole sum. Both ways add in rank order, so the results
 * are bit-identical to sequential addition. If the setting `any_order` is on, MPI computes the sums
 * of large arrays.
 *
 * All ranks run the same sums in the same order, one at a time, and compare their numbers and
 * sizes. Unlike transfers, which the engine advances, a sum advances only in the thread that runs
 * it.
 *
 * Ownership: the caller owns the arrays; the engine owns the buffers of pieces and reuses them.
 * Threads: running work of one queue.
 */
#ifndef MPG_DEVICE_RANKS_ALL_REDUCE_H
#define MPG_DEVICE_RANKS_ALL_REDUCE_H

#include "device/ranks/ranks.h"

typedef struct mpg_all_reduce {
  uint64_t number;    /* result of mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  const char *source; /* `count` items of `item` bytes */
  char *target;       /* may be the same memory as the source */
  size_t count, item;
  uint32_t dtype; /* an mpg_dtype */
  uint32_t line;  /* key of the script line that queued the sum; 0 if unknown */
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
  mpg_rank_step step;
  /* Adds `count` items of parts[rank], in rank order. `sum` may be one of the parts. */
  mpg_status (*add)(void *state, const char *const *parts, char *sum, size_t count);
  void *state;
} mpg_all_reduce;

enum { MPG_ALL_REDUCE_NUMBERS = 2 };

mpg_status mpg_all_reduce_run(const mpg_all_reduce *work);
/* Sends this thread's error text to the other ranks, so that they do not wait for this rank. Called
 * instead of mpg_all_reduce_run after a failure. */
void mpg_all_reduce_fail(const mpg_all_reduce *work);

/* Calls `look` repeatedly until it sets *done. For joint operations of all ranks that do not use
 * this engine, such as NCCL's. Deadlock detection treats the running device as busy during the
 * wait. Fails if `look` fails or if a rank is lost. */
mpg_status mpg_all_reduce_until(mpg_status (*look)(void *state, bool *done), void *state);

/* Returns memory for packed arrays; NULL if out of memory. Valid until the next call. */
char *mpg_all_reduce_room(size_t size);

#endif
