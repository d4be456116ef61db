/* Detects whether a worker and its OpenMP team have their cores to themselves. Threads of a team
 * wait for each other at the end of every kernel, and spin there for milliseconds. This is fastest
 * if each has a core. If other programs use the cores too, a spinning thread keeps the thread that
 * it waits for from running, and a step takes a hundred times as long. So a worker measures now and
 * then how long it had to wait for a core. If that is much, the teams of its process sleep at once
 * instead of spinning, for a while.
 *
 * Ownership: the backend embeds one per worker, zeroed before. All calls are the worker's, but for
 * mpg_oversubscription_forget.
 */
#ifndef MPG_DEVICE_OVERSUBSCRIPTION_H
#define MPG_DEVICE_OVERSUBSCRIPTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum mpg_team_spin {
  MPG_TEAM_SPIN_AUTO,
  MPG_TEAM_SPIN_LONG,
  MPG_TEAM_SPIN_SHORT
} mpg_team_spin; /* MPGLUON_TEAM_SPIN */

/* The state of the detection for one worker: samples and decisions, no system calls. */
typedef struct mpg_oversubscription_state {
  int64_t looked_ns; /* 0: never */
  uint64_t ran_ns, waited_ns;
  int64_t lasted_ns,
      stay_ns; /* how long it has been so; how long teams sleep before they try spinning again */
  bool oversubscribed;
} mpg_oversubscription_state;

typedef struct mpg_oversubscription {
  mpg_oversubscription_state state;
  int64_t read_ns; /* when the account was read last, whether it said enough or not */
  bool opened;
  int file;       /* the system's account of this thread; below 0: there is none */
  int processors; /* 0: not asked yet */
  struct mpg_short_spin *short_spin; /* owned; NULL: teams spin as they do by themselves */
} mpg_oversubscription;

/* The decision: at `now` this thread has run and been kept waiting for so long altogether. Pure. */
void mpg_oversubscription_judge(mpg_oversubscription_state *state, int64_t now_ns, uint64_t ran_ns,
                                uint64_t waited_ns);

/* After a task; `threads` of the device's team. Costs a look at the clock, and once in a while a
 * read of some us. */
void mpg_oversubscription_look(mpg_oversubscription *oversubscription, mpg_team_spin setting,
                               int threads);
void mpg_oversubscription_close(mpg_oversubscription *oversubscription);
void mpg_oversubscription_forget(
    mpg_oversubscription *oversubscription); /* in a forked child, which has none of the threads */

#endif
