/* Deadlock detection between ranks.
 *
 * A rank is blocked while its host waits for data from other ranks, none of its devices can make
 * progress, and no message is sent or received. A blocked rank reports this to the other ranks,
 * with the set of ranks that it waits for and a description of the awaited event. A deadlock is a
 * set of ranks that wait only for each other or for ranks that have ended. A deadlock is reported
 * if each of its ranks has been blocked for a third of the time limit and the set then stays the
 * same, without progress, for another third. Every rank in the set gets an error that lists which
 * rank waits for which.
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

/* Updates this rank's wait state, which is sent with its next report. Called after each time slice
 * by a host thread that waits for `tick` of `device`, or, if `device` is NULL, for all other ranks
 * in the operation that `what` names. The caller zeroes `wait` before the first call. Call with the
 * host lock held. */
void mpg_ranks_poll(mpg_rank_wait *wait, mpg_device *device, mpg_tick tick, const char *what);
void mpg_ranks_poll_end(mpg_rank_wait *wait); /* Ends the wait. May be called from any thread. */

#endif
