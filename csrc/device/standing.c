/* Where the devices' queues stand: what a watchdog asks when nothing moves. */
#include <time.h>

#include "device/internal.h"

static const mpg_submitted *find(const mpg_device *device, mpg_tick tick) {
  uint64_t count = device->submissions < MPG_RECENT ? device->submissions : MPG_RECENT;
  const mpg_submitted *found = NULL;
  for (uint64_t i = 1; i <= count; i++) { /* from the latest back */
    const mpg_submitted *work = &device->recent[(device->submissions - i) % MPG_RECENT];
    if (work->last < tick) return found;
    found = work;
  }
  return device->submissions <= MPG_RECENT ? found : NULL; /* what came before may be meant */
}

mpg_standing mpg_device_standing(const mpg_device *device) {
  mpg_device *d = (mpg_device *)device;
  mpg_standing standing = {.completed = atomic_load(&d->completed), .submitted = device->submitted};
  if (standing.completed >= standing.submitted) return standing;
  standing.work = find(device, standing.completed + 1);
  standing.op = atomic_load_explicit(&d->at.name, memory_order_relaxed);
  standing.scope = atomic_load_explicit(&d->at.scope, memory_order_relaxed);
  int32_t peer = atomic_load_explicit(&d->at.peer, memory_order_relaxed);
  if (peer) {
    standing.peer = mpg_device_at(peer - 1);
    standing.tick = atomic_load_explicit(&d->at.tick, memory_order_relaxed);
    standing.peer_work = find(standing.peer, standing.tick);
  }
  return standing;
}

static mpg_status stall(mpg_run *run, void *payload) {
  int64_t ns = *(int64_t *)payload;
  (void)run;
  nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
  return MPG_OK;
}

mpg_status mpg_device_stall(mpg_device *device, int64_t ns) {
  mpg_submission submission = {.name = "stall", .work = stall, .payload = &ns, .payload_size = sizeof ns};
  return mpg_device_submit(device, &submission, NULL);
}
