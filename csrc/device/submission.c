/* Submission of work: queues all of a call's work or none, in the same order on all devices. */
#include <errno.h>
#include <poll.h>

#include "base/clock.h"
#include "base/host.h"
#include "device/internal.h"
#include "device/profiler.h"

/* Number of submissions between two reads of `completed`. Frequent reads are slow, because the
 * worker writes its cache line. */
enum { LOOK_INTERVAL = 256 };

/* Runtime state: the points of the work being queued. Guarded by the host lock. */
static mpg_point_list points;

/* Waits until the queue is half empty if it is nearly full. Interruptible; releases the host
 * lock. */
static mpg_status wait_for_room(mpg_device *device) {
  uint64_t count = device->submissions;
  if (count % LOOK_INTERVAL || count < MPG_RECENT) return MPG_OK;
  if (mpg_tick_reached(device, device->recent[(count + LOOK_INTERVAL) % MPG_RECENT].last))
    return MPG_OK;
  return mpg_room_wait(device, device->recent[(count + MPG_RECENT / 2) % MPG_RECENT].last);
}

static void discard(const mpg_submission *submission) {
  if (submission->discard) submission->discard((void *)submission->payload);
}

static mpg_status refuse_after_shutdown(const mpg_device *device) {
  return mpg_fail(MPG_ERROR, "%s does not accept more work: mpgluon has been shut down",
                  mpg_device_text(device));
}

/* Enqueues one submission and, on success, advances device->submitted. */
static mpg_status enqueue(mpg_device *device, const mpg_submission *submission) {
  mpg_submission work = *submission;
  if (work.ticks == 0) work.ticks = 1;
  MPG_TRY(device->backend->enqueue(device, &work, device->submitted + 1));
  device->submitted += work.ticks;
  return MPG_OK;
}

static void remember(mpg_device *device, const mpg_submission *work, mpg_tick last) {
  int64_t now = __builtin_expect(mpg_profiler_on(), 0) ? mpg_clock_ns() : 0;
  device->recent[device->submissions++ % MPG_RECENT] = (mpg_submitted){
      last, work->name, work->origin, work->scope, work->stage, work->micro_batch, now};
}

static void publish(mpg_device *device, const mpg_submission *submission, mpg_tick last) {
  remember(device, submission, last);
  device->backend->publish(device);
}

/* Separate from publish because waking a worker is a system call, which would delay publication to
 * the other devices. */
static void wake(mpg_device *device) {
  if (device->backend->wake) device->backend->wake(device);
}

/* Queues and publishes all submissions, or none. Sets last[i] to the last tick of submission i.
 * Discards all payloads on failure. Keeps the host lock. */
static mpg_status queue_all(mpg_device *const *devices, const mpg_submission *submissions,
                            int count, mpg_tick *last) {
  mpg_status status = MPG_OK;
  int queued = 0;
  if (mpg_engine_refuses_work()) MPG_GOTO(refuse_after_shutdown(devices[0]));
  for (; queued < count; queued++) {
    MPG_GOTO(enqueue(devices[queued], &submissions[queued]));
    last[queued] = devices[queued]->submitted;
  }
  for (int i = 0; i < count; i++) publish(devices[i], &submissions[i], last[i]);
  for (int i = 0; i < count; i++) wake(devices[i]);
  return MPG_OK;
fail:
  for (int i = 0; i < queued; i++) {
    devices[i]->submitted -= submissions[i].ticks ? submissions[i].ticks : 1;
    devices[i]->backend->retract(devices[i]);
  }
  for (int i = 0; i < count; i++) discard(&submissions[i]);
  return status;
}

/* In synchronous mode, waits until the queued work is done and returns its failure. */
static mpg_status finish(mpg_device *const *devices, const mpg_tick *last, int count) {
  if (__builtin_expect(mpg_engine_get_mode() != MPG_ENGINE_SYNC, 1)) return MPG_OK;
  for (int i = 0; i < count; i++) mpg_tick_wait(devices[i], last[i], true);
  for (int i = 0; i < count; i++) MPG_TRY(mpg_device_failure(devices[i], last[i]));
  return MPG_OK;
}

/* Waits for room in the queues of all devices. Repeats until no device had to wait, because other
 * queues can fill during a wait. */
static mpg_status make_room(mpg_device *const *devices, int count) {
  uint64_t before;
  do {
    before = mpg_host_turns();
    for (int i = 0; i < count; i++) MPG_TRY(wait_for_room(devices[i]));
  } while (count > 1 && before != mpg_host_turns());
  return MPG_OK;
}

mpg_status mpg_device_queue(const mpg_queuing *queuing) {
  mpg_submission submissions[MPG_MOST_TOGETHER];
  mpg_tick last[MPG_MOST_TOGETHER];
  bool done = false;
  MPG_ASSERT(queuing->count <= MPG_MOST_TOGETHER);
  MPG_TRY(make_room(queuing->devices, queuing->count));
  uint64_t turns = mpg_host_turns();
  points.begin = points.count = 0;
  MPG_TRY(queuing->prepare(queuing->state, &points, submissions, &done));
  if (!done) {
    MPG_TRY(queue_all(queuing->devices, submissions, queuing->count, last));
    queuing->note(queuing->state, last);
  }
  mpg_host_check_turns(turns);
  return done ? MPG_OK : finish(queuing->devices, last, queuing->count);
}

/* --- Tests ------------------------------------------------------------------------------------ */

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
