/* Ranks that wait for one another.
 *
 * A rank stands still while its host waits for something that other ranks have to send, none of its
 * devices has anything to do but wait, and nothing moves. It tells the others so, for whom it
 * waits, and at what. Ranks that have stood still for a third of the limit, and wait only for each
 * other or for ranks that have ended, for another third, never go on: all of them get an error that
 * says who waits for whom.
 *
 * Ownership: the engine's. Threads: as said at each function.
 */
#ifndef MPG_DEVICE_RANKS_STANDSTILL_H
#define MPG_DEVICE_RANKS_STANDSTILL_H

#include "device/device.h"

typedef struct mpg_rank_wait {
  uint64_t progress;
  bool said;
} mpg_rank_wait;

/* By a thread of the host, each time it has waited in vain for a while; `wait` zeroed at first. It
 * waits for that tick of the device or (NULL) for all other ranks at `what`. Host lock. */
void mpg_ranks_look(mpg_rank_wait *wait, mpg_device *device, mpg_tick tick, const char *what);
void mpg_ranks_look_over(mpg_rank_wait *wait); /* it waits no more. Any thread */

#endif
