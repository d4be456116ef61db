/* All-reduces over ranks, in place or out of place. The arrays are on devices that name no rank, so
 * that each rank owns one, or on one device of each rank.
 *
 * Like sums of replicas (replicas.h), these are not ops. They run in a side queue, one at a time,
 * as soon as the arrays are final, while the programs that compute them still run. Work that is
 * queued later on the arrays' device sees the sums. All ranks sum the same arrays in the same
 * order.
 *
 * Ownership: everything is borrowed for the call. Threads: host lock.
 */
#ifndef MPG_COMM_RANK_SUMS_H
#define MPG_COMM_RANK_SUMS_H

#include "tensor/tensor.h"

/* sums[i] receives the sum of arrays[i]. It is the same array, or a different one of the same shape
 * and dtype. All arrays have one dtype, are on one device that does not name a rank, and are sent
 * together. For arrays on a GPU, `indices` has the index of each rank's GPU in the communicator
 * (device/gpu/gpu.h). It is NULL on a CPU device. */
typedef struct mpg_rank_sums {
  const mpg_tensor *const *arrays, *const *sums;
  uint32_t num_arrays;
  const int32_t *indices;
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
} mpg_rank_sums;
mpg_status mpg_comm_sum_over_ranks(const mpg_rank_sums *sums);

/* True if there is one array per rank, in the order of ranks, with equal shapes and dtypes, on CPU
 * devices or on GPUs that are joined by a communicator. At most MPG_COMM_MAX_RANKS. */
bool mpg_comm_one_of_each_rank(const mpg_tensor *const *arrays, int count);
/* Sums arrays that satisfy mpg_comm_one_of_each_rank. results[rank] is on the device of
 * arrays[rank]. It is empty on entry and owned by the caller. */
mpg_status mpg_comm_all_reduce_over_ranks(const mpg_tensor *const *arrays, mpg_tensor *results);

#endif
