/* All-reduces over ranks, in place or out of place. There are two forms. In
 * mpg_comm_sum_over_ranks, each rank passes arrays on a device that names no rank. In
 * mpg_comm_all_reduce_over_ranks, the script has one array on a device of each rank.
 *
 * Like sums of replicas (replicas.h), these are not ops. They run in a side queue, one at a time. A
 * sum starts as soon as its arrays have been computed, even if the programs that compute the arrays
 * still run. Work that is queued later on the arrays' device waits for the sums. All ranks must sum
 * the same arrays in the same order.
 *
 * Ownership: everything is borrowed for the call. Threads: callers hold the host lock.
 */
#ifndef MPG_COMM_RANK_SUMS_H
#define MPG_COMM_RANK_SUMS_H

#include "tensor/tensor.h"

/* sums[i] receives the sum of arrays[i] over all ranks. It may be the same array; otherwise it has
 * the same shape and dtype. All arrays have the same dtype and are on the same device, which does
 * not name a rank. They are packed and sent together. If that device is a GPU, indices[rank] is the
 * index of that rank's GPU. The indices identify the communicator (device/gpu/gpu.h). On a CPU
 * device, `indices` is NULL. */
typedef struct mpg_rank_sums {
  const mpg_tensor *const *arrays, *const *sums;
  uint32_t num_arrays;
  const int32_t *indices;
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
} mpg_rank_sums;
mpg_status mpg_comm_sum_over_ranks(const mpg_rank_sums *sums);

/* True if `arrays` holds one array per rank, in rank order, all with the same shape and the same
 * dtype (other than bool), on CPU devices or on GPUs that have joined a communicator. `count` is at
 * most MPG_COMM_MAX_RANKS. */
bool mpg_comm_one_of_each_rank(const mpg_tensor *const *arrays, int count);
/* Sums arrays that satisfy mpg_comm_one_of_each_rank. Creates results[rank], which the caller owns,
 * on the device of arrays[rank]. */
mpg_status mpg_comm_all_reduce_over_ranks(const mpg_tensor *const *arrays, mpg_tensor *results);

#endif
