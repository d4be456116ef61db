/* Detects whether more threads than cores are runnable. If so, makes OpenMP teams spin only
 * briefly. */
#define _GNU_SOURCE
#include "device/cpu/oversubscription.h"

#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/internal.h"

static const int64_t LOOK_NS = 20000000, STAY_MIN_NS = 200000000, STAY_MAX_NS = 30000000000,
                     RELAPSE_NS = 1000000000;
/* Minimum length of a sample. Even without oversubscription, threads of this process occasionally
 * share a core for three time slices of 4 ms, which would distort a shorter sample. */
static const uint64_t ENOUGH_NS = 60000000;
/* WAITING_PERCENT: threshold for the share of time spent waiting for a core. Without other
 * programs, the share can reach 20%, because threads of this process delay each other. */
enum { WAITING_PERCENT = 35, MAX_DUMMY_THREADS = 16 };

void mpg_oversubscription_judge(mpg_oversubscription_state *s, int64_t now, uint64_t ran,
                                uint64_t waited) {
  uint64_t running = ran - s->ran_ns, waiting = waited - s->waited_ns;
  bool first = s->looked_ns == 0;
  if (!first && running + waiting < ENOUGH_NS) return; /* wait for a longer sample */
  int64_t passed = now - s->looked_ns;
  s->looked_ns = now, s->ran_ns = ran, s->waited_ns = waited;
  if (first) {
    s->stay_ns = STAY_MIN_NS;
    return;
  }
  s->lasted_ns += passed;
  /* Oversubscription can be measured only while teams spin, because a thread that sleeps often gets
   * a core quickly. So long spins are retried at growing intervals. */
  if (s->oversubscribed) {
    if (s->lasted_ns >= s->stay_ns) s->oversubscribed = false, s->lasted_ns = 0;
  } else if (waiting * 100 > (running + waiting) * WAITING_PERCENT) {
    bool relapse = s->lasted_ns < RELAPSE_NS + s->stay_ns;
    s->stay_ns = !relapse                       ? STAY_MIN_NS
                 : 2 * s->stay_ns < STAY_MAX_NS ? 2 * s->stay_ns
                                                : STAY_MAX_NS;
    s->oversubscribed = true, s->lasted_ns = 0;
  }
}

/* --- Short spins ------------------------------------------------------------------------------ */

/* libgomp spins for a shorter time while it has more threads than the machine has processors
 * (GOMP_SPINCOUNT in its manual). A team of sleeping dummy threads raises the number of threads
 * above that. */
struct mpg_short_spin {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t end;
  bool ended;
  int threads;
};

static void *dummy_team_main(void *argument) {
  struct mpg_short_spin *s = argument;
#pragma omp parallel num_threads(s->threads)
  { __asm__ volatile("" ::: "memory"); } /* keeps the compiler from removing the region */
  pthread_mutex_lock(&s->mutex);
  while (!s->ended) pthread_cond_wait(&s->end, &s->mutex);
  pthread_mutex_unlock(&s->mutex);
  return NULL; /* the team's other threads end with this thread */
}

static struct mpg_short_spin *begin_short_spin(int threads) {
  struct mpg_short_spin *s = mpg_malloc(sizeof *s);
  if (!s) return NULL;
  *s = (struct mpg_short_spin){.threads = threads};
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->end, NULL);
  if (pthread_create(&s->thread, NULL, dummy_team_main, s) == 0) return s;
  pthread_cond_destroy(&s->end);
  pthread_mutex_destroy(&s->mutex);
  mpg_free(s);
  return NULL;
}

static void end_short_spin(struct mpg_short_spin *s) {
  if (!s) return;
  pthread_mutex_lock(&s->mutex);
  s->ended = true;
  pthread_cond_signal(&s->end);
  pthread_mutex_unlock(&s->mutex);
  pthread_join(s->thread, NULL);
  pthread_cond_destroy(&s->end);
  pthread_mutex_destroy(&s->mutex);
  mpg_free(s);
}

/* --- Sampling --------------------------------------------------------------------------------- */

static bool read_account(mpg_oversubscription *c, uint64_t *ran, uint64_t *waited) {
#ifdef __linux__
  if (!c->opened) {
    c->opened = true;
    c->file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  }
  if (c->file < 0) return false;
  char text[96];
  ssize_t size = pread(c->file, text, sizeof text - 1, 0);
  if (size <= 0) return false;
  text[size] = 0;
  unsigned long long a, b;
  if (sscanf(text, "%llu %llu", &a, &b) != 2) return false;
  *ran = a, *waited = b;
  return true;
#else
  (void)c, (void)ran, (void)waited;
  return false;
#endif
}

/* Returns the number of dummy threads that give the process more threads than processors. Returns 0
 * if more than MAX_DUMMY_THREADS would be needed. */
static int dummy_threads_of(mpg_oversubscription *c, int threads) {
  if (!c->processors) c->processors = omp_get_num_procs();
  int dummies = c->processors - threads + 2;
  return dummies > MAX_DUMMY_THREADS ? 0 : dummies < 2 ? 2 : dummies;
}

void mpg_oversubscription_look(mpg_oversubscription *c, mpg_team_spin setting, int threads) {
  bool want = setting == MPG_TEAM_SPIN_SHORT;
  if (setting == MPG_TEAM_SPIN_AUTO && threads > 1) {
    int64_t now = mpg_clock_ns();
    if (now - c->read_ns < LOOK_NS) return;
    c->read_ns = now;
    uint64_t ran, waited;
    if (!read_account(c, &ran, &waited)) return;
    mpg_oversubscription_judge(&c->state, now, ran, waited);
    want = c->state.oversubscribed;
  }
  int dummies = want && threads > 1 ? dummy_threads_of(c, threads) : 0;
  if (dummies && !c->short_spin) c->short_spin = begin_short_spin(dummies);
  if (!dummies && c->short_spin) {
    end_short_spin(c->short_spin);
    c->short_spin = NULL;
  }
}

void mpg_oversubscription_close(mpg_oversubscription *c) {
  end_short_spin(c->short_spin);
  if (c->opened && c->file >= 0) close(c->file);
  *c = (mpg_oversubscription){0};
}

void mpg_oversubscription_forget(mpg_oversubscription *c) {
  mpg_free(c->short_spin);
  if (c->opened && c->file >= 0) close(c->file); /* the child has its own copy of the descriptor */
  *c = (mpg_oversubscription){0};
}
