/* Sums over ranks of arrays that each rank has by itself, in place or apart, and of arrays that are
 * on a device of each.
 *
 * Like sums of replicas (replicas.h) they are no ops. They run in a side queue, one after the
 * other, as soon as the arrays are final, while the programs that made them still run. What the
 * arrays' device is given to do afterwards finds the sums. All ranks sum the same in the same
 * order.
 *
 * Ownership: everything is borrowed for the call. Threads: host lock.
 */
#ifndef MPG_COMM_RANK_SUMS_H
#define MPG_COMM_RANK_SUMS_H

#include "tensor/tensor.h"

/* sums[i]: of arrays[i], the same array or another one of its shape and dtype. All are of one dtype
 * and on one device that names no rank. They travel together. indices: of arrays on a GPU, by rank
 * the numbers of those that are joined by a communicator (device/gpu/gpu.h); NULL on a CPU
 * device. */
typedef struct mpg_rank_sums {
  const mpg_tensor *const *arrays, *const *sums;
  uint32_t num_arrays;
  const int32_t *indices;
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
} mpg_rank_sums;
mpg_status mpg_comm_sum_over_ranks(const mpg_rank_sums *sums);

/* Whether there is one array of each rank, in their order, alike, on CPU devices, or on GPUs that
 * are joined by a communicator; at most MPG_COMM_MAX_RANKS. */
bool mpg_comm_one_of_each_rank(const mpg_tensor *const *arrays, int count);
/* Such arrays' sum, in results[rank] where arrays[rank] is: empty, the caller's. */
mpg_status mpg_comm_all_reduce_over_ranks(const mpg_tensor *const *arrays, mpg_tensor *results);

#endif
