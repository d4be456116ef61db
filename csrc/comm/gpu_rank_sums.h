/* The GPU part of rank_sums.h: all-reduces over a communicator with one GPU per rank.
 *
 * Sums are computed in rank order, as on CPUs: the data is divided into one part per rank, and each
 * rank receives all ranks' values of its part, sums them, and sends the sums to the other ranks. If
 * the setting `any_order` is on, NCCL computes the sums. Before the data exchange, the ranks
 * confirm through MPI that every rank takes part and that all ranks sum the same arrays. So no GPU
 * waits for a rank that has failed earlier. If a rank is lost during the exchange, the communicator
 * is aborted.
 *
 * Ownership: everything is borrowed; the device owns the communicator. Threads: running work of one
 * queue at a time, except mpg_gpu_rank_sums_room, which any thread may call.
 */
#ifndef MPG_COMM_GPU_RANK_SUMS_H
#define MPG_COMM_GPU_RANK_SUMS_H

#include "device/gpu/gpu.h"
#include "op/kernel.h"

typedef struct mpg_gpu_rank_sums {
  uint64_t number; /* result of mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS) */
  mpg_device *device;
  const mpg_gpu_communicators *calls;
  mpg_gpu_communicator *communicator;
  mpg_kernel_fn add; /* kernel of add_n */
  mpg_dtype dtype;
  uint32_t num_arrays;
  const mpg_view *views; /* array i is views[2 * i], and its sum is views[2 * i + 1] */
  size_t count;          /* total number of elements */
  char *joined, *parts;  /* device memory, sized by mpg_gpu_rank_sums_room; NULL for 0 bytes */
} mpg_gpu_rank_sums;

/* Maximum number of ranks for sums in rank order. */
enum { MPG_GPU_RANKS_IN_ORDER = 32 };

/* Computes the required device memory in bytes. *joined is the size of the packed arrays, or 0 if
 * packing is not necessary. *parts is the total size of one part from each rank, or 0 if NCCL
 * computes the sums. */
void mpg_gpu_rank_sums_room(const mpg_gpu_rank_sums *sums, size_t *joined, size_t *parts);
mpg_status mpg_gpu_rank_sums_run(const mpg_gpu_rank_sums *sums);
/* Sends this thread's error text to the other ranks, so that they do not wait for this rank. Keeps
 * the error text. Called instead of mpg_gpu_rank_sums_run after a failure. */
void mpg_gpu_rank_sums_fail(const mpg_gpu_rank_sums *sums);

#endif
