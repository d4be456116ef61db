/* The exchange between replicas, for its kernels. Threads: running work. */
#ifndef MPG_OP_LAYERS_REPLICAS_H
#define MPG_OP_LAYERS_REPLICAS_H

#include "op/kernel.h"

/* Does the call of _replicas, on contents that are at `data` in the host's memory; waits for the
 * others. */
mpg_status mpg_replicas_exchange(const mpg_kernel_call *call, const void *data, void *output);

#endif
