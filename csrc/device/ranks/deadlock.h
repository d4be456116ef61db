/* Deadlock detection between ranks.
 *
 * A rank is blocked while its host waits for data from other ranks, none of its devices can
 * progress, and no message arrives or leaves. It reports this to the other ranks, with the ranks
 * and the event it waits for. A deadlock is a set of ranks that have been blocked for a third of
 * the limit and then, for another third, wait only for each other or for ranks that have ended. All
 * of them get an error that lists which rank waits for which.
 *
 * Ownership: the engine owns the state. Threads: stated at each function.
 */
#ifndef MPG_DEVICE_RANKS_DEADLOCK_H
#define MPG_DEVICE_RANKS_DEADLOCK_H

#include "device/device.h"

typedef struct mpg_rank_wait {
  uint64_t progress;
  bool said;
} mpg_rank_wait;

/* Called by a host thread after each time slice without progress. The caller zeroes `wait` before
 * the first call. The thread waits for this tick of the device. If `device` is NULL, it waits for
 * all other ranks in the operation that `what` names. Host lock. */
void mpg_ranks_poll(mpg_rank_wait *wait, mpg_device *device, mpg_tick tick, const char *what);
void mpg_ranks_poll_end(mpg_rank_wait *wait); /* ends the wait. Any thread */

#endif
