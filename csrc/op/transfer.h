/* Copies between devices of several processes (device/ranks/ranks.h), as ops by themselves.
 *
 * The process of the source queues a send on the source's device, the process of the target a
 * receive on the remote device that it comes from, and the target's device waits for that. Each
 * process calls this for every copy. Threads: host lock.
 */
#ifndef MPG_OP_TRANSFER_H
#define MPG_OP_TRANSFER_H

#include "device/ranks/ranks.h"
#include "op/invoke.h"

/* Runs the copy of one array to `device`; the output has its array. */
mpg_status mpg_invoke_transfer(const mpg_invocation *inv, mpg_device *device,
                               mpg_transfer_kind kind);

#endif
