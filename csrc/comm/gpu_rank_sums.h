/* The part of rank_sums.h that is about GPUs: one of each rank, joined by a communicator.
 *
 * The sums are those of the order of ranks, as on CPUs: each rank gets all ranks' values of one
 * part, adds them up, and gives the sums to the others. Where any order will do the library sums.
 * Before anything goes the ranks tell each other, through MPI, that all have come and what they
 * sum. So a failure before that leaves no card waiting; a rank that is lost afterwards ends the
 * communicator.
 *
 * Ownership: everything is borrowed; a communicator is its device's. Threads: running work, of one
 * queue at a time; mpg_gpu_rank_sums_room: any.
 */
#ifndef MPG_COMM_GPU_RANK_SUMS_H
#define MPG_COMM_GPU_RANK_SUMS_H

#include "device/gpu/gpu.h"
#include "op/kernel.h"

typedef struct mpg_gpu_rank_sums {
  uint64_t number; /* mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  mpg_device *device;
  const mpg_gpu_communicators *calls;
  mpg_gpu_communicator *communicator;
  mpg_kernel_fn add; /* add_n's */
  mpg_dtype dtype;
  uint32_t num_arrays;
  const mpg_view *views; /* [2 * i]: an array, and its sum */
  size_t count;          /* of elements, all together */
  char *joined, *parts;  /* of the device: mpg_gpu_rank_sums_room bytes each, where it is not 0 */
} mpg_gpu_rank_sums;

/* How many ranks can sum in order. */
enum { MPG_GPU_RANKS_IN_ORDER = 32 };

/* *joined: the arrays one behind the other, 0 where they are not joined; *parts: a part of each
 * rank. */
void mpg_gpu_rank_sums_room(const mpg_gpu_rank_sums *sums, size_t *joined, size_t *parts);
mpg_status mpg_gpu_rank_sums_run(const mpg_gpu_rank_sums *sums);
/* Instead: tells the others that it failed, with this thread's error text, which stays. */
void mpg_gpu_rank_sums_fail(const mpg_gpu_rank_sums *sums);

#endif
