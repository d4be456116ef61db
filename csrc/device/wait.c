/* Waits for ticks and points: spins, then sleeps, and checks for Ctrl-C. */
#include "base/host.h"
#include "device/internal.h"
#include "device/rendezvous.h"
#include "device/ranks/deadlock.h"

static const int64_t INTERRUPT_SLICE_NS = 50000000;

/* Options of a wait. give_up_lock releases the host lock during the wait. interruptible checks for
 * interrupts after each time slice. for_room also returns when the device waits at a rendezvous,
 * which may need work that the host has yet to queue. */
typedef struct manner {
  bool give_up_lock, interruptible, for_room;
} manner;

/* Blocks in time slices until the tick is reached. Also returns for an interrupt or a rendezvous if
 * `how` asks for it. */
static mpg_status block(mpg_device *device, mpg_tick tick, manner how, mpg_rank_wait *ranks) {
  bool reached = false;
  mpg_progress_watch seen = {0};
  while (!reached && !(how.for_room && atomic_load(&device->at.rendezvous))) {
    void *token = how.give_up_lock ? mpg_host_release_lock() : NULL;
    reached = device->backend->wait(device, tick, INTERRUPT_SLICE_NS);
    if (how.give_up_lock) mpg_host_acquire_lock(token);
    if (how.interruptible && !reached) MPG_TRY(mpg_host_check_interrupt());
    if (reached) break;
    if (device->remote) mpg_engine_run_ready(); /* the other rank may wait for work of this rank */
    mpg_rendezvous_poll(&seen);
    mpg_ranks_poll(ranks, device, tick, NULL);
  }
  return MPG_OK;
}

/* Spins for a short time, then blocks. */
static mpg_status wait_for(mpg_device *device, mpg_tick tick, manner how) {
  if (mpg_tick_spin(device, tick, device->backend->runs_in_wait ? 0 : mpg_spin_limit_ns()))
    return MPG_OK;
  mpg_rank_wait ranks = {0};
  mpg_status status = block(device, tick, how, &ranks);
  mpg_ranks_poll_end(&ranks);
  return status;
}

void mpg_tick_wait(mpg_device *device, mpg_tick tick, bool give_up_lock) {
  if (!mpg_tick_reached(device, tick))
    wait_for(device, tick, (manner){.give_up_lock = give_up_lock});
}

mpg_status mpg_room_wait(mpg_device *device, mpg_tick tick) {
  return mpg_tick_reached(device, tick) ? MPG_OK
                                        : wait_for(device, tick, (manner){true, true, true});
}

mpg_status mpg_point_wait(mpg_point point, bool keep_lock) {
  if (!mpg_tick_reached(point.device, point.tick))
    MPG_TRY(wait_for(point.device, point.tick,
                     (manner){.give_up_lock = !keep_lock, .interruptible = true}));
  return point.data ? mpg_device_failure(point.device, point.tick) : MPG_OK;
}

mpg_status mpg_wait_all(void) {
  /* Waits for remote devices last, because waiting for them polls for messages, which takes CPU
   * time. */
  for (int i = 0; i < 2 * mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i % mpg_device_count());
    if (device->remote == (i < mpg_device_count())) continue;
    MPG_TRY(mpg_point_wait((mpg_point){.device = device, .tick = device->submitted}, false));
  }
  /* Marks all failures as reported and reports the first one. The other failures are not lost: each
   * is reported when an array that the failed work should have written is read. */
  const mpg_cause *first = NULL;
  for (int i = 0; i < mpg_device_count(); i++) {
    const mpg_cause *cause = mpg_failures_unreported(mpg_device_at(i));
    if (!first) first = cause;
  }
  return first ? mpg_failures_report(first) : MPG_OK;
}
