/* Sums of replicated arrays on several devices, in place or out of place. Used for gradients before
 * an update, for example.
 *
 * Unlike collectives, these sums are not ops and cannot be differentiated. They run in the side
 * queue of one of the devices, not in the devices' own queues. So they start as soon as the arrays
 * have been computed, even if the programs that compute the arrays still run. Work that is queued
 * later on the devices waits for the sums.
 *
 * Ownership: everything is borrowed for the call. Threads: callers hold the host lock.
 */
#ifndef MPG_COMM_REPLICAS_H
#define MPG_COMM_REPLICAS_H

#include "tensor/tensor.h"

/* arrays[replica * num_arrays + i] is array i of a replica. The arrays of a replica are on the same
 * device, and all replicas have the same shapes and dtypes. Array i is summed over the replicas, in
 * order of the replica index. The sums are written to the arrays of replica `home`. If
 * `everywhere`, they are written to the arrays of all replicas. If `apart`, `home` is the last
 * replica, and its arrays are only written, not summed. If `copy`, nothing is summed; the arrays of
 * `home` are copied to all other replicas.
 *
 * mpg_comm_sum_replicas sets *done to false and does nothing if there are no arrays, if a device is
 * not a CPU device, if the devices name different ranks, or if there are MPG_MOST_TOGETHER or more
 * replicas. */
typedef struct mpg_replicas {
  const mpg_tensor *const *arrays;
  uint32_t num_arrays, num_replicas, home;
  bool everywhere, apart, copy;
} mpg_replicas;
mpg_status mpg_comm_sum_replicas(const mpg_replicas *replicas, bool *done);

#endif
