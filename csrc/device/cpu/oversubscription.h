/* Detection of oversubscribed cores, for a worker and its OpenMP team. The threads of a team wait
 * for each other at the end of every kernel. They spin for milliseconds before they sleep, which is
 * fastest if each thread has a core of its own. If other programs use the same cores, a spinning
 * thread may occupy the core that the awaited thread needs, and a step may take a hundred times as
 * long. So a worker periodically measures how long it had to wait for a core. If the worker waits
 * for a large share of the time, it shortens the spins of all OpenMP teams in the process for a
 * while, so that their threads sleep almost at once.
 *
 * Ownership: the backend embeds one zeroed state per worker. All calls are made by the worker,
 * except mpg_oversubscription_forget.
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
} mpg_team_spin; /* values of MPGLUON_TEAM_SPIN */

/* Detection state of one worker. The code that updates it makes no system calls, so that tests can
 * call it. */
typedef struct mpg_oversubscription_state {
  int64_t looked_ns; /* time of the last sample; 0 before the first sample */
  uint64_t ran_ns, waited_ns;
  /* lasted_ns: time since `oversubscribed` last changed. stay_ns: how long teams use short spins
   * before long spins are retried. */
  int64_t lasted_ns, stay_ns;
  bool oversubscribed;
} mpg_oversubscription_state;

typedef struct mpg_oversubscription {
  mpg_oversubscription_state state;
  int64_t read_ns; /* time of the last read of the statistics, even if the sample was too short */
  bool opened;
  int file;       /* descriptor of the thread's scheduling statistics; negative if unavailable */
  int processors; /* number of processors that OpenMP sees; 0 if not queried yet */
  /* Team of dummy threads that shortens spins; owned. NULL while teams spin for libgomp's default
   * time. */
  struct mpg_short_spin *short_spin;
} mpg_oversubscription;

/* Updates the state. ran_ns and waited_ns are the total times that the thread has run and has
 * waited for a core until now_ns. No side effects. */
void mpg_oversubscription_judge(mpg_oversubscription_state *state, int64_t now_ns, uint64_t ran_ns,
                                uint64_t waited_ns);

/* Takes a sample if one is due, and starts or ends short spins accordingly. Called after each task;
 * `threads` is the team's size. Costs a clock read, and occasionally a file read of some
 * microseconds. */
void mpg_oversubscription_look(mpg_oversubscription *oversubscription, mpg_team_spin setting,
                               int threads);
void mpg_oversubscription_close(mpg_oversubscription *oversubscription);
/* Frees the state in a forked child, where the dummy threads do not exist. */
void mpg_oversubscription_forget(mpg_oversubscription *oversubscription);

#endif
