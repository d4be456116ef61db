/* Spinning: how long threads poll for work or for a tick before they sleep. */
#include "base/clock.h"
#include "device/internal.h"

static const int64_t SPIN_NS = 30000;

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

/* Number of idle workers that spin. Updated by any thread. */
static _Atomic(int) spinning;

bool mpg_idle_spin_begin(void) {
  return atomic_fetch_add_explicit(&spinning, 1, memory_order_relaxed) + 1 < mpg_machine_cores();
}
void mpg_idle_spin_end(void) { atomic_fetch_sub_explicit(&spinning, 1, memory_order_relaxed); }
void mpg_idle_spin_forget(void) { atomic_store_explicit(&spinning, 0, memory_order_relaxed); }
