/* The state of the devices' queues, for the watchdog. */
#include <errno.h>
#include <poll.h>

#include "device/internal.h"

static const mpg_submitted *find(const mpg_device *device, mpg_tick tick) {
  uint64_t count = device->submissions < MPG_RECENT ? device->submissions : MPG_RECENT;
  const mpg_submitted *found = NULL;
  for (uint64_t i = 1; i <= count; i++) { /* newest first */
    const mpg_submitted *work = &device->recent[(device->submissions - i) % MPG_RECENT];
    if (work->last < tick) return found;
    found = work;
  }
  /* An older submission may have reached the tick. */
  return device->submissions <= MPG_RECENT ? found : NULL;
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

struct stall {
  int32_t ms;
  int until;
};

static mpg_status stall(mpg_run *run, void *payload) {
  const struct stall *how = payload;
  (void)run;
  struct pollfd until = {.fd = how->until, .events = POLLIN}; /* poll ignores a negative fd */
  while (poll(&until, 1, how->ms) < 0 && errno == EINTR) continue;
  return MPG_OK;
}

static mpg_status prepare_stall(void *state, mpg_point_list *points, mpg_submission *submissions,
                                bool *done) {
  (void)points, (void)done;
  submissions[0] = (mpg_submission){
      .name = "stall", .work = stall, .payload = state, .payload_size = sizeof(struct stall)};
  return MPG_OK;
}

static void note_nothing(void *state, const mpg_tick *ticks) { (void)state, (void)ticks; }

mpg_status mpg_device_stall(mpg_device *device, int32_t ms, int until) {
  struct stall how = {ms, until};
  return mpg_device_queue(&(mpg_queuing){.devices = &device,
                                         .count = 1,
                                         .prepare = prepare_stall,
                                         .note = note_nothing,
                                         .state = &how});
}
