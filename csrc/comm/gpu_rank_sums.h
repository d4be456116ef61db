/* The GPU part of rank_sums.h: sums over one GPU of each rank, joined by a communicator.
 *
 * Sums are computed in rank order, as on CPUs. Each rank receives all ranks' values of one part,
 * sums them, and sends the sums to the other ranks. If any order is allowed, NCCL computes the
 * sums. Before the data exchange, the ranks confirm through MPI that all of them have arrived and
 * sum the same arrays. So no card waits for a rank that failed earlier. A rank that is lost later
 * ends the communicator.
 *
 * Ownership: everything is borrowed; a communicator belongs to its device. Threads: running work,
 * of one queue at a time; mpg_gpu_rank_sums_room: any.
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
  mpg_kernel_fn add; /* kernel of add_n */
  mpg_dtype dtype;
  uint32_t num_arrays;
  const mpg_view *views; /* array i at [2 * i], and its sum at [2 * i + 1] */
  size_t count;          /* total number of elements */
  char *joined, *parts;  /* device memory of mpg_gpu_rank_sums_room bytes; NULL for 0 bytes */
} mpg_gpu_rank_sums;

/* Maximum number of ranks for sums in rank order. */
enum { MPG_GPU_RANKS_IN_ORDER = 32 };

/* Computes the bytes of device memory for the arrays packed contiguously (*joined, 0 if they are
 * not packed), and for one part per rank (*parts). */
void mpg_gpu_rank_sums_room(const mpg_gpu_rank_sums *sums, size_t *joined, size_t *parts);
mpg_status mpg_gpu_rank_sums_run(const mpg_gpu_rank_sums *sums);
/* Notifies the other ranks of a failure instead of summing, with this thread's error text, which is
 * kept. */
void mpg_gpu_rank_sums_fail(const mpg_gpu_rank_sums *sums);

#endif
