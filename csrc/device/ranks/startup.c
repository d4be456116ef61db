/* Time limits for MPI's initialization and finalization. Both calls wait for all ranks and cannot
 * be canceled, so if a rank has stopped or died, they would block forever. A watchdog thread then
 * exits the process, and the launcher ends the other ranks. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device/ranks/engine.h"

static mpg_engine *const engine = &mpg_the_engine;

static void *watch(void *done) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += engine->limit_ns / 1000000000;
  pthread_mutex_lock(&engine->lock);
  while (engine->beginning)
    if (pthread_cond_timedwait(&engine->begun, &engine->lock, &end) == ETIMEDOUT) break;
  bool late = engine->beginning;
  pthread_mutex_unlock(&engine->lock);
  if (!late) return NULL;
  fprintf(stderr,
          "mpgluon: MPI has not %s within %.0f s: another rank is stopped, dead or cut off "
          "(MPGLUON_RANKS_TIMEOUT)\n",
          (const char *)done, (double)engine->limit_ns * 1e-9);
  fflush(stderr);
  _exit(1);
}

static mpg_status start_watch(const char *done) {
  engine->beginning = true;
  sigset_t all, before;
  sigfillset(&all); /* signals are handled by the host's threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&engine->watch, NULL, watch, (void *)done);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error) return MPG_OK;
  engine->beginning = false;
  return mpg_fail(MPG_ERROR, "the communication thread of the ranks could not be started: %s",
                  strerror(error));
}

mpg_status mpg_ranks_begin_within(double seconds) {
  engine->limit_ns = (int64_t)(seconds * 1e9);
  return start_watch("begun");
}

mpg_status mpg_ranks_end_within_limit(void) { return start_watch("ended"); }

void mpg_ranks_begun(void) {
  pthread_mutex_lock(&engine->lock);
  bool watched = engine->beginning;
  engine->beginning = false;
  pthread_cond_broadcast(&engine->begun);
  pthread_mutex_unlock(&engine->lock);
  if (watched) pthread_join(engine->watch, NULL);
}
