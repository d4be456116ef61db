/* Eager copies between devices of different processes (device/ranks/ranks.h).
 *
 * The process of the source queues a send on the source device. The process of the target queues a
 * receive on the remote device that represents the source, and the target device waits for it.
 * Every process calls mpg_invoke_transfer for every copy. Threads: callers hold the host lock.
 */
#ifndef MPG_OP_TRANSFER_H
#define MPG_OP_TRANSFER_H

#include "device/ranks/ranks.h"
#include "op/invoke.h"

/* Queues this process's part of copying one array to `device`. The output must already have its
 * storage. */
mpg_status mpg_invoke_transfer(const mpg_invocation *inv, mpg_device *device,
                               mpg_transfer_kind kind);

#endif
