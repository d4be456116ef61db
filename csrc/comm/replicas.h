/* Sums of replicated arrays on several devices, in place or out of place, for instance of gradients
 * before an update.
 *
 * Unlike a collective, this is not an op. Nothing is recorded, and the devices' own queues do not
 * contain it. It runs in the side queue of one of the devices as soon as the arrays are final,
 * while the programs that compute them still run. Work that is queued later on the devices sees the
 * sums.
 *
 * Ownership: everything is borrowed for the call. Threads: host lock.
 */
#ifndef MPG_COMM_REPLICAS_H
#define MPG_COMM_REPLICAS_H

#include "tensor/tensor.h"

/* arrays[replica * num_arrays + i] is array i of a replica. The arrays of a replica are on one
 * device, and all replicas have the same shapes and dtypes. The sums, computed in the order of the
 * replicas, are written to the arrays of `home`, or of all replicas if `everywhere`. With `apart`,
 * the last replica is the home, and is written but not summed. With `copy`, nothing is summed, and
 * the home's arrays are copied to all other replicas. *done is false if a device has no side queue;
 * then nothing has happened. */
typedef struct mpg_replicas {
  const mpg_tensor *const *arrays;
  uint32_t num_arrays, num_replicas, home;
  bool everywhere, apart, copy;
} mpg_replicas;
mpg_status mpg_comm_sum_replicas(const mpg_replicas *replicas, bool *done);

#endif
