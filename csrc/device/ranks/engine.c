/* The engine: its thread, detection of lost ranks, transfer numbers, and sends. */
#define _GNU_SOURCE
#include "device/ranks/engine.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"

static mpg_engine *const engine = &mpg_the_engine;

static const size_t MAX_IN_FLIGHT = (size_t)512 << 20;

/* --- Ranks ------------------------------------------------------------------------------------ */

int mpg_ranks_count(void) { return engine->size; }
int mpg_ranks_own(void) { return engine->rank; }
bool mpg_ranks_any_order(void) { return engine->mpi.any_order; }

mpg_status mpg_ranks_begin(const mpg_mpi *mpi, int rank, int size, double limit) {
  if (engine->peers) return mpg_fail(MPG_ERROR, "the ranks are already connected");
  if (size < 1 || rank < 0 || rank >= size || mpi->largest_tag < 1 || mpi->handle_size < 1 ||
      mpi->handle_size > (int)sizeof(mpg_mpi_handle))
    return mpg_fail(MPG_VALUE_ERROR, "rank %d does not exist in a program of %d ranks", rank, size);
  engine->peers = mpg_calloc((size_t)size, sizeof *engine->peers);
  if (!engine->peers) return mpg_out_of_host_memory((size_t)size * sizeof *engine->peers);
  engine->mpi = *mpi;
  engine->rank = rank;
  engine->size = size;
  engine->limit_ns = (int64_t)(limit * 1e9);
  pthread_mutex_lock(&engine->lock);
  mpg_status status = MPG_OK;
  for (int i = 0; i < size && status == MPG_OK; i++) {
    engine->peers[i].heard_ns = mpg_clock_ns();
    if (i != rank) status = mpg_news_listen(i);
  }
  if (status == MPG_OK) status = mpg_engine_start();
  pthread_mutex_unlock(&engine->lock);
  return status;
}

void mpg_ranks_tell_end(const char *failure) {
  pthread_mutex_lock(&engine->lock);
  engine->ended = true;
  for (int i = 0; i < engine->size && engine->peers; i++)
    if (i != engine->rank && (!engine->peers[i].lost[0] || engine->peers[i].ended_ns))
      (void)mpg_news_tell(i, failure ? MPG_NEWS_FAILED : MPG_NEWS_ENDED, failure ? failure : "");
  pthread_cond_signal(&engine->changed);
  pthread_mutex_unlock(&engine->lock);
}

void mpg_ranks_give_up(const char *text) {
  pthread_mutex_lock(&engine->lock);
  mpg_peers_lost(text);
  pthread_cond_signal(&engine->changed);
  pthread_mutex_unlock(&engine->lock);
}

bool mpg_ranks_differ(char *text, size_t size) {
  bool differ = false, failures = mpg_rank_end_of(engine->rank).failures;
  const mpg_rank_step step = mpg_ranks_step();
  pthread_mutex_lock(&engine->lock);
  for (int i = 0; i < engine->size && engine->peers; i++)
    failures |= i != engine->rank && (engine->peers[i].end.failures || engine->peers[i].failed[0]);
  for (int i = 0; i < engine->size && engine->peers && !failures && !differ; i++) {
    const mpg_peer *peer = &engine->peers[i];
    if (i == engine->rank) continue;
    differ = true;
    if (peer->end.numbers != engine->next_number)
      snprintf(text, size,
               "the ranks run different programs: rank %d has queued %llu transfers between ranks, "
               "but rank %d has queued %llu",
               engine->rank, (unsigned long long)engine->next_number, i,
               (unsigned long long)peer->end.numbers);
    else if (peer->end.sent != peer->received)
      snprintf(text, size,
               "the ranks run different programs: rank %d has received %llu of the %llu messages "
               "that rank %d has sent to it",
               engine->rank, (unsigned long long)peer->received, (unsigned long long)peer->end.sent,
               i);
    else if (mpg_ranks_compare_steps(&step, &peer->end.step, i) != MPG_OK)
      snprintf(text, size, "%s", mpg_error_text());
    else
      differ = false;
  }
  pthread_mutex_unlock(&engine->lock);
  return differ;
}

int mpg_ranks_find_lost(char *text, size_t size, bool *all_ended) {
  int found = -1;
  pthread_mutex_lock(&engine->lock);
  *all_ended = true;
  for (int i = 0; i < engine->size && engine->peers; i++) {
    const mpg_peer *peer = &engine->peers[i];
    if (i == engine->rank) continue;
    *all_ended &= peer->ended_ns != 0;
    if (!peer->lost[0] || found >= 0) continue;
    found = i;
    snprintf(text, size, "%s", peer->lost);
  }
  pthread_mutex_unlock(&engine->lock);
  return found;
}

mpg_transfer_kind mpg_transfer_of(mpg_device_id from, mpg_device_id to) {
  int own = engine->rank + 1; /* 1 + rank, as in device ids */
  if (from.rank == to.rank)
    return from.rank && from.rank != own ? MPG_TRANSFER_NONE : MPG_TRANSFER_HERE;
  if (!from.rank) return to.rank == own ? MPG_TRANSFER_HERE : MPG_TRANSFER_NONE;
  if (from.rank == own) return to.rank ? MPG_TRANSFER_SEND : MPG_TRANSFER_SHARE;
  return !to.rank || to.rank == own ? MPG_TRANSFER_RECEIVE : MPG_TRANSFER_NONE;
}

uint64_t mpg_transfer_numbers(mpg_device_id from, mpg_device_id to) {
  if (!from.rank || from.rank == to.rank) return 0;
  return to.rank ? 1 : (uint64_t)engine->size;
}

uint64_t mpg_transfers_take(uint64_t count) {
  uint64_t first = engine->next_number;
  engine->next_number += count;
  return first;
}

/* --- Waiting ---------------------------------------------------------------------------------- */

void mpg_engine_wake(void) {
  if (engine->asleep) pthread_cond_signal(&engine->changed);
}

/* The pauses grow because each poll takes microseconds on a core that devices may need. */
void mpg_engine_pause(int *turns, mpg_poller poller) {
  enum { SPINS = 128, YIELDS = 400, LONG_BEHIND = 2000, DOUBLES_AT = 8, MOST_DOUBLED = 7 };
  const long SHORT_NS = 20000, LONG_NS = 200000;
  const int turn = *turns;
  if (turn < INT_MAX) ++*turns;
  if (turn < SPINS && poller != MPG_POLLER_IDLE && mpg_spin_limit_ns()) {
    mpg_cpu_pause();
    return;
  }
  struct timespec pause = {.tv_nsec = turn < LONG_BEHIND ? SHORT_NS : LONG_NS};
  if (poller == MPG_POLLER_WORK && turn < YIELDS) {
    sched_yield(); /* the awaited rank may run on this machine and need the core */
    return;
  }
  if (poller != MPG_POLLER_WORK) {
    int doubled = poller == MPG_POLLER_IDLE ? turn : turn / DOUBLES_AT;
    pause.tv_nsec = SHORT_NS << (doubled < MOST_DOUBLED ? doubled : MOST_DOUBLED);
  }
  nanosleep(&pause, NULL);
}

bool mpg_engine_advance(bool *left) {
  bool moved = mpg_messages_advance();
  *left = false;
  moved |= mpg_remote_advance(left);
  for (const mpg_message *m = engine->in_flight; m && !*left; m = m->next)
    *left = !m->control || m->sends;
  return moved;
}

/* --- The thread ------------------------------------------------------------------------------- */

static const int64_t TELL_NS = 500000000, LOOK_NS = 100000000, SLEPT_NS = 3000000000,
                     LATE_NS = 1000000000, FAILED_NS = 300000000;

static bool waits_for(int rank) {
  if (engine->peers[rank].awaited) return true;
  for (const mpg_message *m = engine->in_flight; m; m = m->next)
    if (m->rank == rank && !m->sends && !m->control) return true;
  return false;
}

/* Reports to the other ranks that this rank is alive. Marks a rank as lost if it has failed, if it
 * has ended while this rank waits for it, or if it was silent for too long. *seen is the time of
 * the previous call. If that was long ago, this process itself was stopped, so the gap does not
 * count as silence of the other ranks. */
static void look_around(int64_t *seen) {
  int64_t now = mpg_clock_ns(), slept = now - *seen;
  char text[MPG_NOTICE];
  if (slept < LOOK_NS) return;
  *seen = now;
  bool tells = now - engine->told_ns >= TELL_NS && !engine->ended;
  if (tells) engine->told_ns = now;
  for (int i = 0; i < engine->size; i++) {
    mpg_peer *peer = &engine->peers[i];
    if (i == engine->rank || peer->lost[0]) continue;
    if (slept > SLEPT_NS) peer->heard_ns += slept;
    if (tells) (void)mpg_news_tell(i, MPG_NEWS_ALIVE, "");
    if (peer->failed[0]) {
      if (now - peer->ended_ns < FAILED_NS) continue;
      snprintf(text, sizeof text, "rank %d has failed: %.400s", i, peer->failed);
      mpg_peer_lost(i, text);
    } else if (peer->ended_ns) {
      const mpg_rank_state *own = &engine->peers[engine->rank].standing;
      if (now - peer->ended_ns < LATE_NS) continue;
      if (waits_for(i))
        snprintf(text, sizeof text,
                 "rank %d has ended without sending the data that rank %d waits for: the ranks run "
                 "different programs",
                 i, engine->rank);
      else if (mpg_rank_awaits(i, now - LATE_NS))
        snprintf(text, sizeof text,
                 "rank %d has ended, but rank %d still waits for it (%.300s): the ranks run "
                 "different programs",
                 i, engine->rank, own->text);
      else
        continue;
      mpg_peer_lost(i, text);
    } else if (now - peer->heard_ns > engine->limit_ns) {
      char steps[40] = "";
      if (peer->steps)
        snprintf(steps, sizeof steps, "step %llu, ", (unsigned long long)peer->steps);
      snprintf(text, sizeof text,
               "rank %d has not responded for %.1f s: it is stopped, dead or disconnected "
               "(MPGLUON_RANKS_TIMEOUT); last known at: %s%.200s",
               i, (double)(now - peer->heard_ns) * 1e-9, steps,
               peer->standing.text[0] ? peer->standing.text : "no block");
      mpg_peer_lost(i, text);
    }
  }
  mpg_deadlock_check(now);
}

void mpg_ranks_note_step(void) {
  if (engine->size < 2) return;
  pthread_mutex_lock(&engine->lock);
  engine->peers[engine->rank].steps++;
  pthread_mutex_unlock(&engine->lock);
}

static void *engine_main(void *unused) {
  int turns = 0;
  int64_t seen = mpg_clock_ns();
  (void)unused;
#ifdef __linux__
  pthread_setname_np(pthread_self(), "ranks");
#endif
  pthread_mutex_lock(&engine->lock);
  while (!engine->stopping) {
    bool left;
    if (mpg_engine_advance(&left)) turns = 0;
    look_around(&seen);
    if (!left) {
      struct timespec until;
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_nsec += LOOK_NS;
      if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
      engine->asleep = true;
      pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
      engine->asleep = false;
      turns = 0;
      continue;
    }
    pthread_mutex_unlock(&engine->lock);
    if (atomic_load(&engine->workers) || atomic_load(&engine->hosts)) turns = INT_MAX;
    mpg_engine_pause(&turns, MPG_POLLER_IDLE);
    pthread_mutex_lock(&engine->lock);
  }
  pthread_mutex_unlock(&engine->lock);
  return NULL;
}

mpg_status mpg_engine_start(void) {
  if (engine->forked)
    return mpg_fail(
        MPG_ERROR,
        "this process was forked from rank %d and cannot take part in transfers between ranks",
        engine->rank);
  if (engine->started) return MPG_OK;
  sigset_t all, before;
  sigfillset(&all); /* signals are handled by the host's threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&engine->thread, NULL, engine_main, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    return mpg_fail(MPG_ERROR, "the communication thread of the ranks could not be started: %s",
                    strerror(error));
  engine->started = true;
  return MPG_OK;
}

void mpg_engine_fork_prepare(void) { pthread_mutex_lock(&engine->lock); }

void mpg_engine_fork_done(bool child) {
  if (!child) {
    pthread_mutex_unlock(&engine->lock);
    return;
  }
  pthread_mutex_init(&engine->lock, NULL);
  pthread_cond_init(&engine->changed, NULL);
  engine->started = false;
  engine->forked = engine->size > 1;
}

void mpg_engine_stop(void) {
  pthread_mutex_lock(&engine->lock);
  engine->stopping = true;
  bool started = engine->started;
  engine->started = false;
  pthread_cond_broadcast(&engine->changed);
  pthread_mutex_unlock(&engine->lock);
  if (started) pthread_join(engine->thread, NULL);
}

void mpg_ranks_end(void) {
  for (int i = 0; i < engine->size; i++)
    if (i != engine->rank) mpg_ranks_lost(i, "the program has ended");
  mpg_engine_stop();
  /* Running sums fail soon, because the ranks are marked as lost. */
  while (atomic_load(&engine->sums_running)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* --- Transfers -------------------------------------------------------------------------------- */

/* Waits until at most MAX_IN_FLIGHT bytes are in flight. Called with the lock held; releases it
 * during pauses. */
static void make_room(void) {
  bool left;
  for (int turns = 0; engine->bytes_in_flight > MAX_IN_FLIGHT && !engine->stopping;) {
    mpg_engine_advance(&left); /* the receiver may itself wait for this rank to receive */
    pthread_mutex_unlock(&engine->lock);
    mpg_engine_pause(&turns, MPG_POLLER_WORK);
    pthread_mutex_lock(&engine->lock);
  }
}

/* Sends `data`, or the failure text `failure` if it is not NULL, to the target's rank or to all
 * other ranks. */
static mpg_status send(const mpg_transfer *t, const void *data, const char *failure) {
  int to = mpg_device_rank(t->to);
  mpg_status status = MPG_OK;
  pthread_mutex_lock(&engine->lock);
  if (engine->stopping) MPG_GOTO(mpg_fail(MPG_ERROR, "the program has ended"));
  if (!failure) make_room();
  const mpg_device *device = mpg_worker_device();
  uint32_t scope = device ? atomic_load_explicit(&device->at.scope, memory_order_relaxed) : 0;
  if (scope) engine->scope = scope;
  MPG_GOTO(mpg_engine_start());
  if (to >= 0) {
    status = mpg_message_send(t, to, t->number, data, failure);
  } else {
    for (int i = 1; i < engine->size && status == MPG_OK; i++) {
      int rank = (engine->rank + i) % engine->size;
      status = mpg_message_send(t, rank, t->number + (uint64_t)rank, data, failure);
    }
  }
  if (engine->in_flight) mpg_engine_wake();
fail:
  pthread_mutex_unlock(&engine->lock);
  return status;
}

mpg_status mpg_transfer_send(const mpg_transfer *transfer, mpg_device *device, const void *data) {
  if (device->backend->host_accessible || !transfer->size) return send(transfer, data, NULL);
  char *host = mpg_malloc(transfer->size);
  if (!host) return mpg_out_of_host_memory(transfer->size);
  mpg_status status = device->backend->run_copy_to_host(device, host, data, transfer->size);
  if (status == MPG_OK) status = send(transfer, host, NULL);
  mpg_free(host);
  return status;
}

void mpg_transfer_send_failure(const mpg_transfer *transfer) {
  char text[MPG_NOTICE];
  snprintf(text, sizeof text, "%s", mpg_error_text());
  send(transfer, NULL, text); /* if this fails, the receiving rank waits until its time limit */
}

bool mpg_ranks_flushed(void) {
  bool flushed = true;
  pthread_mutex_lock(&engine->lock);
  for (const mpg_message *m = engine->in_flight; m; m = m->next)
    flushed &= !m->sends || m->done || engine->peers[m->rank].lost[0];
  pthread_mutex_unlock(&engine->lock);
  return flushed;
}

mpg_rank_statistics mpg_ranks_statistics(void) {
  pthread_mutex_lock(&engine->lock);
  const mpg_rank_statistics statistics = {engine->next_number, engine->sent, engine->received,
                                          engine->bytes_sent, engine->bytes_received};
  pthread_mutex_unlock(&engine->lock);
  return statistics;
}

void mpg_ranks_lost(int rank, const char *text) {
  pthread_mutex_lock(&engine->lock);
  if (rank >= 0 && rank < engine->size && engine->peers) mpg_peer_lost(rank, text);
  pthread_cond_signal(&engine->changed);
  pthread_mutex_unlock(&engine->lock);
}
