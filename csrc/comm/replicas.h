/* Sums of what replicas have on several devices, in place or apart: of gradients, before their use.
 *
 * Unlike a collective it is no op: nothing is recorded, and it does not stand in the devices' own
 * queues. It runs in the side queue of one of the devices, as soon as the arrays are final, so it
 * goes on while the programs that made them still run. Whatever the devices are given to do
 * afterwards finds the sums.
 *
 * Ownership: everything is borrowed for the call. Threads: host lock.
 */
#ifndef MPG_COMM_REPLICAS_H
#define MPG_COMM_REPLICAS_H

#include "tensor/tensor.h"

/* arrays[replica * num_arrays + i]: array i of a replica, all of them on one device; the same shape
 * and dtype in every replica. The sums, in the order of the replicas, are written to those of
 * `home` or to everyone's. apart: the last replica, which is the home then, is only written to.
 * copy: nothing is summed, what the home has is copied to everyone else. *done: false where a
 * device has no side queue; nothing happened then. */
typedef struct mpg_replicas {
  const mpg_tensor *const *arrays;
  uint32_t num_arrays, num_replicas, home;
  bool everywhere, apart, copy;
} mpg_replicas;
mpg_status mpg_comm_sum_replicas(const mpg_replicas *replicas, bool *done);

#endif
