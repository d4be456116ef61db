/* The state of the devices' queues, for the watchdog. */
#include "device/internal.h"

static const mpg_submitted *find(const mpg_device *device, mpg_tick tick) {
  uint64_t count = device->submissions < MPG_RECENT ? device->submissions : MPG_RECENT;
  const mpg_submitted *found = NULL;
  for (uint64_t i = 1; i <= count; i++) { /* newest first */
    const mpg_submitted *work = &device->recent[(device->submissions - i) % MPG_RECENT];
    if (work->last < tick) return found;
    found = work;
  }
  /* No recorded submission ends before the tick, so the tick may belong to a submission that is no
   * longer recorded. */
  return device->submissions <= MPG_RECENT ? found : NULL;
}

const mpg_submitted *mpg_device_latest(const mpg_device *device) {
  return device->submissions ? &device->recent[(device->submissions - 1) % MPG_RECENT] : NULL;
}

mpg_queue_status mpg_device_queue_status(const mpg_device *device) {
  mpg_device *d = (mpg_device *)device;
  mpg_queue_status queue_status = {.completed = atomic_load(d->completed),
                                   .submitted = device->submitted};
  if (queue_status.completed >= queue_status.submitted) return queue_status;
  queue_status.work = find(device, queue_status.completed + 1);
  queue_status.op = atomic_load_explicit(&d->at.name, memory_order_relaxed);
  queue_status.scope = atomic_load_explicit(&d->at.scope, memory_order_relaxed);
  int32_t peer = atomic_load_explicit(&d->at.peer, memory_order_relaxed);
  if (peer) {
    queue_status.peer = mpg_device_at(peer - 1);
    queue_status.tick = atomic_load_explicit(&d->at.tick, memory_order_relaxed);
    queue_status.peer_work = find(queue_status.peer, queue_status.tick);
  }
  return queue_status;
}
