/* Deadlock detection between ranks. */
#include "device/ranks/deadlock.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "device/ranks/engine.h"

static mpg_engine *const engine = &mpg_the_engine;

/* Sets of ranks are 64-bit masks. Ranks 63 and above share one bit. */
static uint64_t bit_of(int rank) { return (uint64_t)1 << (rank < 63 ? rank : 63); }
static uint64_t all_others(void) {
  uint64_t set = 0;
  for (int i = 0; i < engine->size; i++)
    if (i != engine->rank) set |= bit_of(i);
  return set;
}

/* --- This rank -------------------------------------------------------------------------------- */

/* True if any device of this process can make progress without another rank. If false, has added
 * all devices' progress counters to *progress. Call with the host lock held. */
static bool any_runs(uint64_t *progress) {
  for (int i = 0; i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    *progress += atomic_load(device->completed) + device->submissions;
    if (!device->remote && !mpg_device_idle(device) && !atomic_load(&device->at.rendezvous) &&
        !atomic_load_explicit(&device->at.peer, memory_order_relaxed) &&
        atomic_load(&engine->summing) != device)
      return true;
  }
  return false;
}

/* Describes in `text` the event that the host waits for: the work that completes `tick`, or the
 * operation `what` if `device` is NULL. */
static void describe(mpg_device *device, mpg_tick tick, const char *what, char *text, size_t size) {
  if (!device) {
    snprintf(text, size, "'%s'", what);
    return;
  }
  const mpg_queue_status at = mpg_device_queue_status(device);
  const mpg_submitted *work = at.work;
  char line[120] = "";
  /* The error should describe the awaited work, not the work that runs now. */
  if (!work || tick > work->last) {
    const mpg_submitted *latest = mpg_device_latest(device);
    if (latest && latest->last == tick) work = latest;
  }
  if (!work) {
    snprintf(text, size, "work on %s", mpg_device_text(device));
    return;
  }
  if (work->origin) mpg_host_origin_text(work->origin, line, sizeof line);
  const char *block = mpg_scope_text(work->scope);
  snprintf(text, size, "%s on %s%s%s%s%s", work->name, mpg_device_text(device),
           block[0] ? " of " : "", block, line[0] ? ", queued at " : "", line);
}

void mpg_ranks_poll(mpg_rank_wait *wait, mpg_device *device, mpg_tick tick, const char *what) {
  char text[MPG_NOTICE / 2];
  if (engine->size < 2) return;
  uint64_t progress = 0;
  bool runs = any_runs(&progress);
  describe(device, tick, what, text, sizeof text);
  pthread_mutex_lock(&engine->lock);
  mpg_rank_state *own = &engine->peers[engine->rank].standing;
  uint64_t waits_for = device ? 0 : all_others();
  for (const mpg_message *m = engine->in_flight; m; m = m->next)
    if (!m->sends && !m->control && !m->done) waits_for |= bit_of(m->rank);
  for (int i = 0; i < engine->size; i++)
    if (engine->peers[i].awaited) waits_for |= bit_of(i);
  progress += engine->sent + engine->received + engine->turns;
  bool waiting = !runs && waits_for && wait->said && progress == wait->progress;
  if (!waiting) *own = (mpg_rank_state){.since_ns = mpg_clock_ns()};
  own->waits_for = waits_for;
  own->serial = progress;
  snprintf(own->text, sizeof own->text, "%s", text);
  pthread_mutex_unlock(&engine->lock);
  *wait = (mpg_rank_wait){.progress = progress, .said = true};
}

void mpg_ranks_poll_end(mpg_rank_wait *wait) {
  if (!wait->said) return;
  wait->said = false;
  pthread_mutex_lock(&engine->lock);
  engine->peers[engine->rank].standing = (mpg_rank_state){0};
  pthread_mutex_unlock(&engine->lock);
}

bool mpg_rank_awaits(int rank, int64_t since_ns) {
  const mpg_rank_state *own = &engine->peers[engine->rank].standing;
  /* Ranks 63 and above share a bit, so the set does not show which of these ranks is awaited. */
  if (rank >= 63) return false;
  return own->since_ns && own->since_ns < since_ns && own->waits_for & bit_of(rank);
}

/* --- All ranks; the engine's lock is held ----------------------------------------------------- */

static bool is_waiting(int rank, int64_t now) {
  const mpg_peer *peer = &engine->peers[rank];
  if (peer->ended_ns) return true;
  /* Measures the wait at the time of the rank's last report. A process that was stopped sends no
   * reports, so its wait does not seem to grow. */
  int64_t heard = rank == engine->rank ? now : peer->heard_ns;
  return peer->standing.since_ns && heard - peer->standing.since_ns > engine->limit_ns / 3;
}

/* Returns the largest set of ranks that wait only for each other. Starts with all waiting ranks and
 * removes ranks that wait for a rank outside of the set, until only ranks that wait within the set
 * remain. *serial changes if any of these ranks makes progress. */
static uint64_t find_deadlock(int64_t now, uint64_t *serial) {
  uint64_t deadlocked = 0, before;
  for (int i = 0; i < engine->size; i++)
    if (is_waiting(i, now)) deadlocked |= bit_of(i);
  for (int i = 63; i < engine->size; i++)
    if (!is_waiting(i, now)) deadlocked &= ~bit_of(63);
  do {
    before = deadlocked;
    for (int i = 0; i < engine->size; i++)
      if (!engine->peers[i].ended_ns && engine->peers[i].standing.waits_for & ~deadlocked)
        deadlocked &= ~bit_of(i);
  } while (deadlocked != before);
  *serial = deadlocked;
  for (int i = 0; i < engine->size; i++)
    if (deadlocked & bit_of(i)) *serial = *serial * 31 + engine->peers[i].standing.serial;
  return deadlocked;
}

static void name_ranks(uint64_t set, char *text, size_t size) {
  size_t length = 0;
  const char *between = "";
  for (int i = 0; i < engine->size && i < 63 && length + 8 < size; i++) {
    if (!(set & bit_of(i))) continue;
    length += (size_t)snprintf(text + length, size - length, "%s%d", between, i);
    between = " and ";
  }
  if (!length) snprintf(text, size, "many");
}

void mpg_deadlock_check(int64_t now) {
  uint64_t serial, deadlocked = find_deadlock(now, &serial);
  if (!(deadlocked & bit_of(engine->rank)) || engine->peers[engine->rank].ended_ns ||
      engine->ended || serial != engine->waits_checksum) {
    engine->waits_checksum = serial;
    engine->waits_changed_ns = now;
    return;
  }
  if (now - engine->waits_changed_ns < engine->limit_ns / 3) return;
  char text[MPG_NOTICE] = "the ranks wait for one another and never go on";
  const size_t start = strlen(text);
  size_t length = start;
  for (int i = 0; i < engine->size && length + 1 < sizeof text; i++) {
    if (!(deadlocked & bit_of(i)) || engine->peers[i].ended_ns) continue;
    char ranks[40] = "";
    name_ranks(engine->peers[i].standing.waits_for, ranks, sizeof ranks);
    length += (size_t)snprintf(
        text + length, sizeof text - length, "%s rank %d waits for rank %s, at step %llu, for %s",
        length > start ? ";" : ":", i, ranks, (unsigned long long)engine->peers[i].steps,
        engine->peers[i].standing.text);
  }
  mpg_peers_lost(text);
}
