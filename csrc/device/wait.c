/* Waits for ticks and points: spins, then sleeps, and checks for Ctrl-C. */
#include "base/clock.h"
#include "base/host.h"
#include "device/internal.h"

static const int64_t SPIN_NS = 30000, INTERRUPT_SLICE_NS = 50000000;

int64_t mpg_spin_limit_ns(void) { return mpg_machine_cores() > 1 ? SPIN_NS : 0; }

static bool shares_core(const mpg_device *device) {
  int core = atomic_load_explicit(&((mpg_device *)device)->at.core, memory_order_relaxed);
  return core && core == mpg_this_core();
}

bool mpg_tick_spin(const mpg_device *device, mpg_tick tick, int64_t ns) {
  if (mpg_tick_reached(device, tick)) return true;
  if (ns <= 0) return false;
  int64_t end = mpg_clock_ns() + ns;
  do {
    for (int i = 0; i < 32; i++) {
      if (mpg_tick_reached(device, tick)) return true;
      mpg_cpu_pause();
    }
  } while (!shares_core(device) && mpg_clock_ns() < end);
  return mpg_tick_reached(device, tick);
}

/* Spins, then blocks in slices. With `interruptible` the host is asked after each whether to go on.
 */
static mpg_status wait_for(mpg_device *device, mpg_tick tick, bool give_up_lock,
                           bool interruptible) {
  /* In shuffled order nothing happens until backend->wait does it. */
  bool reached = mpg_tick_spin(device, tick,
                               device->backend == &mpg_shuffle_backend ? 0 : mpg_spin_limit_ns());
  while (!reached) {
    void *token = give_up_lock ? mpg_host_release_lock() : NULL;
    reached = device->backend->wait(device, tick, INTERRUPT_SLICE_NS);
    if (give_up_lock) mpg_host_acquire_lock(token);
    if (interruptible && !reached) MPG_TRY(mpg_host_check_interrupt());
  }
  return MPG_OK;
}

void mpg_tick_wait(mpg_device *device, mpg_tick tick, bool give_up_lock) {
  if (!mpg_tick_reached(device, tick)) wait_for(device, tick, give_up_lock, false);
}

mpg_status mpg_point_wait(mpg_point point, bool keep_lock) {
  if (!mpg_tick_reached(point.device, point.tick))
    MPG_TRY(wait_for(point.device, point.tick, !keep_lock, true));
  return point.data ? mpg_device_failure(point.device, point.tick) : MPG_OK;
}

mpg_status mpg_wait_all(void) {
  for (int i = 0; i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    MPG_TRY(mpg_point_wait((mpg_point){.device = device, .tick = device->submitted}, false));
  }
  /* All failures count as reported then: the first one is, and reading what the others left undone
   * says so again. */
  const mpg_cause *first = NULL;
  for (int i = 0; i < mpg_device_count(); i++) {
    const mpg_cause *cause = mpg_failures_unreported(mpg_device_at(i));
    if (!first) first = cause;
  }
  return first ? mpg_failures_report(first) : MPG_OK;
}
