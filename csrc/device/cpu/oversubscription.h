/* Detection of oversubscribed cores, for a worker and its OpenMP team. The threads of a team wait
 * for each other at the end of every kernel and spin for milliseconds. This is fastest if each
 * thread has a core of its own. If other programs also use the cores, a spinning thread may occupy
 * the core of the thread that it waits for, and a step takes a hundred times as long. So a worker
 * periodically measures how long it had to wait for a core. If the share is high, the teams of its
 * process sleep immediately instead of spinning for some time.
 *
 * Ownership: the backend embeds one per worker, zeroed. All calls are made by the worker, except
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

/* Detection state of one worker: samples and decisions, no system calls. */
typedef struct mpg_oversubscription_state {
  int64_t looked_ns; /* time of the last sample; 0 means none */
  uint64_t ran_ns, waited_ns;
  /* Time since `oversubscribed` last changed, and how long teams sleep before they try spinning
   * again. */
  int64_t lasted_ns, stay_ns;
  bool oversubscribed;
} mpg_oversubscription_state;

typedef struct mpg_oversubscription {
  mpg_oversubscription_state state;
  int64_t read_ns; /* time of the last read, even if it was inconclusive */
  bool opened;
  int file;       /* the system's scheduling statistics of this thread; negative if unavailable */
  int processors; /* 0 means not queried yet */
  /* Owned; NULL means that teams spin for libgomp's default time. */
  struct mpg_short_spin *short_spin;
} mpg_oversubscription;

/* Updates the state from the total times that this thread has run and waited for a core until
 * `now_ns`. Has no other effects. */
void mpg_oversubscription_judge(mpg_oversubscription_state *state, int64_t now_ns, uint64_t ran_ns,
                                uint64_t waited_ns);

/* Called after a task with the team size `threads`. Costs one clock read, and occasionally a file
 * read of some microseconds. */
void mpg_oversubscription_look(mpg_oversubscription *oversubscription, mpg_team_spin setting,
                               int threads);
void mpg_oversubscription_close(mpg_oversubscription *oversubscription);
/* Called in a forked child, where the threads do not exist. */
void mpg_oversubscription_forget(mpg_oversubscription *oversubscription);

#endif
