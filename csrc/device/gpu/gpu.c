/* GPUs as devices: queue, timeline, waiting and failures, based on the driver of gpu.h.
 *
 * As on a CPU device, a worker takes tasks from a queue. Running a task only issues it: the worker
 * puts kernels and copies on the compute stream and continues. Publishing a tick, so that threads
 * see when the stream has passed it, costs a stream operation. So the worker publishes when it runs
 * out of work, before it blocks, and otherwise only after PUBLISH_EVERY tasks, or after fewer tasks
 * while a thread waits.
 */
#define _GNU_SOURCE
#include "device/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/gpu/issued.h"
#include "device/pool.h"
#include "device/queue.h"
#include "device/ranks/ranks.h"

/* maximum numbers of tasks between two published ticks */
enum { PUBLISH_EVERY = 64, PUBLISH_EVERY_WAITED = 16 };
/* Waiting threads spin for up to SPIN_NS. Most small training steps complete within this time. */
static const int64_t SPIN_NS = 200000, LINGER_NS = 3000, POLL_FIRST_NS = 5000,
                     POLL_LAST_NS = 100000, WAIT_SLICE_NS = 20000000, CHECK_EVERY_NS = 5000000;

typedef struct gpu_state {
  mpg_queue queue; /* its mutex also guards `event_ticks`, `loss` and `history` */
  mpg_gpu *gpu;
  const mpg_gpu_driver *driver;
  mpg_sleepers sleepers; /* threads that wait for work to be issued */
  _Atomic(int) waiting;  /* number of threads that wait for a tick */
  _Atomic(bool) lost;
  const mpg_cause *loss; /* the cause of the loss; constant once `lost` is set */
  /* `forked` and `joined` are guarded by the host lock. */
  bool forked;           /* this is a forked child, where the driver cannot be used */
  struct joined *joined; /* communicators over ranks */
  /* Event i was recorded after all work up to tick event_ticks[i]. 0 means that the event is
   * unused. */
  mpg_tick event_ticks[MPG_GPU_EVENTS];
  uint32_t next_event;
  mpg_issued history;
  /* Worker state. `published` is the last published tick. */
  mpg_tick published;
  int unpublished; /* number of tasks issued since the last published tick */
  bool apart;      /* publish the running work as soon as it is issued */
  _Alignas(64) _Atomic(mpg_tick) issued;
} gpu_state;

static bool gpu_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns);
static gpu_state *state_of(const mpg_device *device) { return device->backend_state; }
static bool is_gpu(const mpg_device *device) { return device->backend == &mpg_gpu_backend; }

static mpg_status gpu_open(mpg_device *device) {
  const char *reason;
  const mpg_gpu_library *library = mpg_gpu_library_get(&reason);
  gpu_state *state = mpg_aligned_malloc(_Alignof(gpu_state), sizeof *state);
  if (!state) return mpg_out_of_host_memory(sizeof *state);
  memset(state, 0, sizeof *state);
  mpg_queue_init(&state->queue);
  mpg_sleepers_init(&state->sleepers);
  state->driver = library->driver;
  device->backend_state = state;
  mpg_status status = mpg_issued_init(&state->history);
  if (status == MPG_OK) status = state->driver->open(device->id, &state->gpu);
  if (status != MPG_OK) {
    mpg_issued_close(&state->history);
    return status;
  }
  device->stream = state->driver->stream(state->gpu);
  state->history.reports = state->driver->reports(state->gpu);
  device->raised = &state->history.reports->raised;
  device->completed = &state->history.reports->completed;
  const char *graphs = getenv("MPGLUON_CUDA_GRAPHS");
  device->captures = !graphs || strcmp(graphs, "0") != 0;
  return MPG_OK;
}

/* --- Loss ------------------------------------------------------------------------------------- */

/* Records the loss as the failure of all issued work that has not completed, and marks this work as
 * completed. The mutex is held. */
static void fail_issued(mpg_device *device, gpu_state *state) {
  mpg_tick done = atomic_load(device->completed), issued = atomic_load(&state->issued);
  if (issued <= done) return;
  mpg_failures_add(device, done + 1, issued, state->loss);
  atomic_store(device->completed, issued);
}

/* Sets the error for an operation on a lost device. On a worker, reports the cause of the loss, so
 * that the work that is skipped fails with the same cause. */
static mpg_status fail_lost(mpg_device *device, mpg_status status) {
  const mpg_cause *loss = state_of(device)->loss;
  return mpg_worker_device() ? mpg_failures_report(loss)
                             : mpg_fail(status, "%s", mpg_failures_text(loss));
}

/* Marks a device as lost after an error of the device itself. The thread's error text describes the
 * error. No result on the device is reliable afterward. Only the first error is kept, because later
 * errors are consequences of it. The error is attributed to the first work that has not completed.
 * May be called from any thread. */
static void lose(mpg_device *device) {
  gpu_state *state = state_of(device);
  pthread_mutex_lock(&state->queue.mutex);
  if (!atomic_load(&state->lost)) {
    char text[700];
    snprintf(
        text, sizeof text,
        "%s is lost: %.500s. Its arrays can no longer be used in this process; other devices can",
        mpg_device_text(device), mpg_error_text());
    const mpg_issued_work *first =
        mpg_issued_after(&state->history, atomic_load(device->completed));
    mpg_submission work = {0};
    /* If this thread is not the device's worker, work that the worker is still issuing was not the
     * cause. */
    if (first && mpg_worker_device() != device && first->first > atomic_load(&state->issued))
      first = NULL;
    if (first)
      work = (mpg_submission){.name = first->name,
                              .origin = first->origin,
                              .scope = first->scope,
                              .stage = first->stage,
                              .micro_batch = first->micro_batch};
    state->loss = mpg_cause_new(device, MPG_ERROR, text, first ? &work : NULL);
    atomic_store(&state->lost, true);
  }
  fail_issued(device, state);
  pthread_mutex_unlock(&state->queue.mutex);
}

static bool found_lost(mpg_device *device) {
  gpu_state *state = state_of(device);
  if (atomic_load(&state->lost)) return true;
  if (state->driver->check(state->gpu) == MPG_OK) return false;
  lose(device);
  return true;
}

/* --- Timeline: the worker's side -------------------------------------------------------------- */

/* Marks all work up to `tick` as issued. If the device is lost, marks the work as failed as
 * well. */
static void issue(mpg_device *device, gpu_state *state, mpg_tick tick) {
  /* Sequentially consistent, like the accesses to wake_at and `lost`, so that neither a sleeper nor
   * a loss is missed. */
  atomic_store(&state->issued, tick);
  if (atomic_load(&state->lost)) {
    pthread_mutex_lock(&state->queue.mutex);
    fail_issued(device, state);
    pthread_mutex_unlock(&state->queue.mutex);
  }
  mpg_sleepers_passed(&state->sleepers, &state->queue, tick);
}

static void publish_issued(mpg_device *device, gpu_state *state) {
  mpg_tick issued = atomic_load_explicit(&state->issued, memory_order_relaxed);
  if (issued == state->published) return;
  state->published = issued;
  state->unpublished = 0;
  if (atomic_load_explicit(&state->lost, memory_order_relaxed)) return;
  if (state->driver->publish(state->gpu, issued) != MPG_OK) lose(device);
}

static bool wait_issued(mpg_device *device, mpg_tick tick, int64_t timeout_ns, bool stops) {
  gpu_state *state = state_of(device);
  return mpg_sleepers_wait(&state->sleepers, &state->queue, &state->issued, tick, timeout_ns,
                           stops);
}

/* Makes the stream of `device` wait until the peer's stream has passed `tick`, which has been
 * issued. */
static void wait_on_stream(mpg_device *device, mpg_device *peer, mpg_tick tick) {
  gpu_state *state = state_of(device), *other = state_of(peer);
  mpg_status status = MPG_OK;
  pthread_mutex_lock(&other->queue.mutex);
  int best = -1;
  for (int i = 0; i < MPG_GPU_EVENTS; i++) {
    mpg_tick at = other->event_ticks[i];
    if (at >= tick && (best < 0 || at < other->event_ticks[best])) best = i;
  }
  if (best < 0) { /* no recorded event covers the tick, so records one after all issued work */
    best = (int)(other->next_event++ % MPG_GPU_EVENTS);
    mpg_tick issued = atomic_load(&other->issued);
    status = other->driver->record(other->gpu, best);
    other->event_ticks[best] = status == MPG_OK ? issued : 0;
  }
  bool recorded = status == MPG_OK;
  if (recorded) status = state->driver->wait(state->gpu, other->gpu, best);
  pthread_mutex_unlock(&other->queue.mutex);
  if (status != MPG_OK) lose(recorded ? device : peer);
}

/* Waits until the outcome of all checks before another GPU's point is known, so that data of failed
 * work does not reach this device. (The point has been issued, but the GPU runs the checks later.)
 * Returns false if the worker has been asked to stop. */
static bool wait_for_checks(mpg_device *device, mpg_point point) {
  gpu_state *state = state_of(device), *other = state_of(point.device);
  if (!atomic_load_explicit(&other->history.open, memory_order_relaxed)) return true;
  bool published = false;
  for (;;) {
    pthread_mutex_lock(&other->queue.mutex);
    bool open = mpg_issued_open_before(&other->history, point.device, point.tick);
    pthread_mutex_unlock(&other->queue.mutex);
    if (!open) return true;
    if (mpg_queue_stopping(&state->queue)) return false;
    if (!published) publish_issued(device, state);
    published = true;
    gpu_wait(point.device, point.tick, WAIT_SLICE_NS);
  }
}

/* Makes work on `device` wait for a point of another device. Returns false if the worker has been
 * asked to stop. */
static bool wait_for(mpg_device *device, mpg_point point) {
  gpu_state *state = state_of(device);
  if (point.device == device || mpg_tick_reached(point.device, point.tick)) return true;
  if (!is_gpu(point.device)) {
    publish_issued(device, state);
    bool reached = mpg_queue_wait(&state->queue, device, point);
    /* In shuffle mode, this thread may have run the other device's work, which may have changed the
     * current GPU. */
    state->driver->attach(state->gpu);
    return reached;
  }
  if (atomic_load(&state_of(point.device)->issued) < point.tick) {
    publish_issued(device, state);
    atomic_store_explicit(&device->at.tick, point.tick, memory_order_relaxed);
    atomic_store_explicit(&device->at.peer, point.device->ordinal + 1, memory_order_relaxed);
    bool reached = false;
    while (!reached && !mpg_queue_stopping(&state->queue))
      reached = wait_issued(point.device, point.tick, WAIT_SLICE_NS, true);
    atomic_store_explicit(&device->at.peer, 0, memory_order_relaxed);
    if (!reached) return false;
  }
  if (point.data && !wait_for_checks(device, point)) return false;
  if (!mpg_tick_reached(point.device, point.tick)) wait_on_stream(device, point.device, point.tick);
  return true;
}

static bool gpu_run_wait(mpg_run *run, mpg_point point) {
  if (wait_for(run->device, point)) return true;
  run->blocked_on = point; /* happens only if the worker has been asked to stop */
  return false;
}

static void gpu_run_signal(mpg_run *run, mpg_tick tick) {
  mpg_device *device = run->device;
  gpu_state *state = state_of(device);
  pthread_mutex_lock(&state->queue.mutex);
  int event = (int)(state->next_event++ % MPG_GPU_EVENTS);
  mpg_status status = state->driver->record(state->gpu, event);
  state->event_ticks[event] = status == MPG_OK ? tick : 0;
  pthread_mutex_unlock(&state->queue.mutex);
  if (status != MPG_OK) lose(device);
  issue(device, state, tick);
  /* A CPU device may wait for this tick, which completes only if it is published. */
  publish_issued(device, state);
}

static mpg_status gpu_work_waits(mpg_device *device) {
  publish_issued(device, state_of(device));
  state_of(device)->apart = true;
  return mpg_device_failure(device, atomic_load(&state_of(device)->issued) + 1);
}

/* Blocks the worker until its own stream has passed `tick`, and then collects the GPU's reports.
 * `tick` must have been issued. Does nothing if `tick` is 0. */
static void settle(mpg_device *device, gpu_state *state, mpg_tick tick) {
  if (!tick) return;
  publish_issued(device, state);
  while (!gpu_wait(device, tick, WAIT_SLICE_NS) && !mpg_queue_stopping(&state->queue)) continue;
  pthread_mutex_lock(&state->queue.mutex);
  mpg_issued_collect(&state->history, device);
  pthread_mutex_unlock(&state->queue.mutex);
}

mpg_status mpg_gpu_check(mpg_device *device, mpg_gpu_report **report, _Atomic(uint32_t) **raised) {
  gpu_state *state = state_of(device);
  mpg_tick tick;
  if (device->scratch_stays)
    return mpg_fail(
        MPG_NOT_IMPLEMENTED,
        "a kernel with a check cannot be captured, because its report belongs to a single call");
  *raised = device->raised;
  while (!(*report = mpg_issued_check(&state->history, device, &state->queue.mutex,
                                      atomic_load(&state->issued) + 1, &tick))) {
    if (mpg_queue_stopping(&state->queue)) return mpg_fail(MPG_ERROR, "mpgluon has been shut down");
    settle(device, state, tick);
  }
  return MPG_OK;
}

static void gpu_collect(mpg_device *device) {
  gpu_state *state = state_of(device);
  pthread_mutex_lock(&state->queue.mutex);
  mpg_issued_collect(&state->history, device);
  pthread_mutex_unlock(&state->queue.mutex);
}

/* --- Worker ----------------------------------------------------------------------------------- */

static void *worker_main(void *argument) {
  mpg_device *device = argument;
  gpu_state *state = state_of(device);
  mpg_worker_set_device(device);
#ifdef __linux__
  pthread_setname_np(pthread_self(), mpg_device_text(device));
#endif
  state->driver->attach(state->gpu);
  for (;;) {
    if (state->published != atomic_load_explicit(&state->issued, memory_order_relaxed)) {
      int64_t end = mpg_clock_ns() + (mpg_spin_limit_ns() ? LINGER_NS : 0);
      while (mpg_queue_empty(&state->queue) && mpg_clock_ns() < end) mpg_cpu_pause();
      int most = atomic_load_explicit(&state->waiting, memory_order_relaxed) ? PUBLISH_EVERY_WAITED
                                                                             : PUBLISH_EVERY;
      if (mpg_queue_empty(&state->queue) || state->unpublished >= most)
        publish_issued(device, state);
    }
    mpg_record *next = mpg_queue_next(&state->queue);
    if (!next) break;
    mpg_task *task = &next->task;
    const mpg_submission *work = &task->submission;
    bool going = true;
    for (int i = 0; i < work->num_points && going; i++) going = wait_for(device, work->points[i]);
    if (!going) break;
    settle(device, state, mpg_issued_overflow_tick(&state->history));
    mpg_issued_begin(&state->history, device, &state->queue.mutex, task);
    mpg_point blocked_on = {0};
    bool done = true;
    if (atomic_load(&state->lost)) {
      fail_lost(device, MPG_ERROR);
      mpg_task_fail(device, task, MPG_ERROR);
    } else {
      done = mpg_task_advance(device, task, &blocked_on);
    }
    if (!done) break; /* the task suspends itself only if the worker has been asked to stop */
    mpg_tick last = mpg_task_last_tick(task);
    mpg_queue_pop(&state->queue, next);
    state->unpublished++;
    issue(device, state, last);
    if (state->apart) publish_issued(device, state);
    state->apart = false;
  }
  publish_issued(device, state);
  return NULL;
}

static mpg_status gpu_enqueue(mpg_device *device, const mpg_submission *submission,
                              mpg_tick first_tick) {
  gpu_state *state = state_of(device);
  if (state->forked)
    return mpg_fail(
        MPG_ERROR, "%s cannot be used in a forked process; start processes with the method 'spawn'",
        mpg_device_text(device));
  return mpg_queue_enqueue(&state->queue, device, worker_main, submission, first_tick);
}
static void gpu_publish(mpg_device *device) { mpg_queue_publish(&state_of(device)->queue); }
static void gpu_wake(mpg_device *device) { mpg_queue_wake(&state_of(device)->queue); }
static void gpu_retract(mpg_device *device) { mpg_queue_retract(&state_of(device)->queue); }
static void gpu_stop(mpg_device *device) { mpg_queue_stop(&state_of(device)->queue); }

static void gpu_close(mpg_device *device) {
  gpu_state *state = state_of(device);
  if (state->forked) return;
  mpg_queue_join(&state->queue);
  /* Waits for all issued work. Selects this GPU for the thread, so that the kernel cache can be
   * freed. */
  state->driver->close(state->gpu);
  /* Leaks the cache of a lost GPU, because NVIDIA's libraries might hang when they free it. */
  if (!atomic_load(&state->lost)) mpg_device_free_kernel_cache(device);
  while (!mpg_queue_empty(&state->queue)) {
    mpg_record *left = mpg_queue_front(&state->queue);
    mpg_task_drop(device, &left->task);
    mpg_tick last = mpg_task_last_tick(&left->task);
    mpg_queue_pop(&state->queue, left);
    atomic_store(&state->issued, last);
    atomic_store(device->completed, last);
  }
}

/* --- Host side -------------------------------------------------------------------------------- */

/* Sets this thread's timer slack: the number of nanoseconds by which the kernel may prolong a
 * sleep. The default of 50,000 is longer than the sleeps of sleep_until. Returns the previous
 * value. */
static int set_timer_slack(int ns) {
#ifdef __linux__
  int before = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, (unsigned long)ns);
  return before;
#else
  return ns;
#endif
}

/* Polls until an issued tick is completed, with exponentially growing sleeps. */
static bool sleep_until(mpg_device *device, mpg_tick tick, int64_t end) {
  int64_t checked = mpg_clock_ns(), pause = POLL_FIRST_NS;
  int slack = set_timer_slack(1);
  while (!mpg_tick_reached(device, tick)) {
    int64_t now = mpg_clock_ns();
    if (now >= end) break;
    if (now - checked >= CHECK_EVERY_NS) {
      checked = now;
      if (found_lost(device)) continue; /* found_lost has marked all issued work as completed */
    }
    nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    if (pause < POLL_LAST_NS) pause *= 2;
  }
  if (slack > 0) set_timer_slack(slack);
  return mpg_tick_reached(device, tick);
}

static bool gpu_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  gpu_state *state = state_of(device);
  int64_t end = mpg_clock_ns() + timeout_ns;
  atomic_fetch_add_explicit(&state->waiting, 1, memory_order_relaxed);
  if (wait_issued(device, tick, timeout_ns, false) &&
      !mpg_tick_spin(device, tick, mpg_spin_limit_ns() ? SPIN_NS : 0))
    sleep_until(device, tick, end);
  atomic_fetch_sub_explicit(&state->waiting, 1, memory_order_relaxed);
  return mpg_tick_reached(device, tick);
}

static mpg_tick gpu_issued(mpg_device *device) { return atomic_load(&state_of(device)->issued); }

static void gpu_fork_prepare(mpg_device *device) {
  pthread_mutex_lock(&state_of(device)->queue.mutex);
}

static void gpu_fork_done(mpg_device *device, bool child) {
  gpu_state *state = state_of(device);
  if (!child) {
    pthread_mutex_unlock(&state->queue.mutex);
    return;
  }
  mpg_queue_forget_worker(&state->queue);
  state->forked = true;
  /* Only the parent may use the driver's memory, which contains the parent's tick counter. */
  atomic_store(&device->own_completed, device->submitted);
  device->completed = &device->own_completed;
  device->raised = NULL;
  state->history.reports = NULL;
}

/* --- Memory ----------------------------------------------------------------------------------- */

static mpg_status usable(mpg_device *device) {
  gpu_state *state = state_of(device);
  if (state->forked)
    return mpg_fail(
        MPG_ERROR, "%s cannot be used in a forked process; start processes with the method 'spawn'",
        mpg_device_text(device));
  if (atomic_load(&state->lost)) return fail_lost(device, MPG_ERROR);
  return MPG_OK;
}

/* Returns `status`. If a driver call has failed because the device is lost, sets the error text
 * that describes the loss. Otherwise keeps the call's error text. */
static mpg_status note_loss(mpg_device *device, mpg_status status) {
  if (status == MPG_OK || status == MPG_DEVICE_OUT_OF_MEMORY) return status;
  char text[512];
  snprintf(text, sizeof text, "%s", mpg_error_text());
  if (found_lost(device)) return fail_lost(device, status);
  return mpg_fail(status, "%s", text); /* found_lost may have changed the text */
}

static void gpu_work_failed(mpg_device *device, mpg_status status) { note_loss(device, status); }

static mpg_status gpu_allocate(mpg_device *device, size_t size, void **memory) {
  MPG_TRY(usable(device));
  if (mpg_memory_refused())
    return mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "%s: %zu bytes could not be allocated",
                    mpg_device_text(device), size);
  return note_loss(device, state_of(device)->driver->allocate(state_of(device)->gpu, size, memory));
}

static void gpu_free(mpg_device *device, void *memory, size_t size) {
  (void)size;
  if (usable(device) != MPG_OK) return; /* the memory is freed with the device */
  state_of(device)->driver->free(state_of(device)->gpu, memory, mpg_worker_device() == device);
}

static void gpu_trim(mpg_device *device) {
  if (usable(device) == MPG_OK) state_of(device)->driver->trim(state_of(device)->gpu);
}

static void gpu_drain(mpg_device *device) {
  settle(device, state_of(device), atomic_load(&state_of(device)->issued));
}

void mpg_gpu_make_room(int card) {
  for (mpg_device *device = mpg_device_newest(); device; device = device->older) {
    if (!is_gpu(device) || state_of(device)->driver->card(state_of(device)->gpu) != card) continue;
    mpg_pool_relieve(device->pool, SIZE_MAX);
    gpu_trim(device);
  }
}

static mpg_status gpu_copy_to_host(mpg_device *device, void *host, const void *memory,
                                   size_t size) {
  if (!size) return MPG_OK;
  MPG_TRY(usable(device));
  return note_loss(
      device, state_of(device)->driver->copy_to_host(state_of(device)->gpu, host, memory, size));
}

static mpg_status gpu_copy_from_host(mpg_device *device, void *memory, const void *host,
                                     size_t size) {
  if (!size) return MPG_OK;
  MPG_TRY(usable(device));
  return note_loss(
      device, state_of(device)->driver->copy_from_host(state_of(device)->gpu, memory, host, size));
}

/* --- Sharing ---------------------------------------------------------------------------------- */

static int gpu_card(mpg_device *device) {
  return state_of(device)->driver->card(state_of(device)->gpu);
}
static void *gpu_arrivals(mpg_device *device) {
  return state_of(device)->driver->arrivals(state_of(device)->gpu);
}
static mpg_status sharing(mpg_device *device, mpg_status (*act)(mpg_gpu *gpu)) {
  MPG_TRY(usable(device));
  return note_loss(device, act(state_of(device)->gpu));
}
static mpg_status gpu_received(mpg_device *device) {
  return sharing(device, state_of(device)->driver->received);
}
static mpg_status gpu_arrived(mpg_device *device) {
  return sharing(device, state_of(device)->driver->arrived);
}
/* True if the GPU runs no work to wait for, because it is lost or this is a forked child. */
static bool runs_nothing(mpg_device *device) {
  return state_of(device)->forked || atomic_load(&state_of(device)->lost);
}
static mpg_status gpu_follow_default(mpg_device *device) {
  return runs_nothing(device) ? MPG_OK : sharing(device, state_of(device)->driver->follow_default);
}
static mpg_status gpu_settle(mpg_device *device) {
  return runs_nothing(device) ? MPG_OK : sharing(device, state_of(device)->driver->settle);
}

static const mpg_sharing gpu_sharing = {.card = gpu_card,
                                        .stream = gpu_arrivals,
                                        .received = gpu_received,
                                        .arrived = gpu_arrived,
                                        .follow_default = gpu_follow_default,
                                        .settle = gpu_settle};

static mpg_status gpu_memory(mpg_device *device, size_t *free_bytes, size_t *total) {
  MPG_TRY(usable(device));
  return note_loss(device,
                   state_of(device)->driver->memory(state_of(device)->gpu, free_bytes, total));
}

static mpg_status gpu_run_copy(mpg_device *device, mpg_device *to, void *target, mpg_device *from,
                               const void *source, size_t size) {
  gpu_state *state = state_of(device);
  return state->driver->copy(state->gpu, is_gpu(to) ? state_of(to)->gpu : NULL, target,
                             is_gpu(from) ? state_of(from)->gpu : NULL, source, size);
}

static mpg_status gpu_run_copy_to_host(mpg_device *device, void *host, const void *source,
                                       size_t size) {
  const mpg_gpu_driver *driver = state_of(device)->driver;
  mpg_gpu *gpu = state_of(device)->gpu;
  if (!size) return MPG_OK;
  MPG_TRY(note_loss(device, driver->copy(gpu, NULL, host, gpu, source, size)));
  MPG_TRY(note_loss(device, driver->finish(gpu)));
  /* Fails if the work that produced the data has failed, for example by a device-side assertion. */
  return gpu_work_waits(device);
}

static mpg_status gpu_capture_begin(mpg_device *device, void **stream) {
  return state_of(device)->driver->capture_begin(state_of(device)->gpu, stream);
}
static bool gpu_capture_void(mpg_device *device) {
  return state_of(device)->driver->capture_void(state_of(device)->gpu);
}
static mpg_status gpu_capture_end(mpg_device *device, bool keep, void **capture) {
  return state_of(device)->driver->capture_end(state_of(device)->gpu, keep, capture);
}
static mpg_status gpu_capture_run(mpg_device *device, void *capture) {
  return state_of(device)->driver->capture_run(state_of(device)->gpu, capture);
}
static void gpu_capture_free(mpg_device *device, void *capture) {
  if (!state_of(device)->forked) state_of(device)->driver->capture_free(capture);
}

static mpg_status gpu_capture_keys(mpg_device *device, const mpg_random_key *keys, int count) {
  gpu_state *state = state_of(device);
  if (!device->keys) MPG_TRY(state->driver->keys(state->gpu, &device->keys));
  return count ? state->driver->write_keys(state->gpu, keys, count) : MPG_OK;
}

/* --- Ranks ------------------------------------------------------------------------------------ */

typedef struct joined {
  struct joined *next;
  mpg_gpu_communicator *communicator;
  int32_t indices[]; /* indices[rank] is the index of that rank's GPU */
} joined;

static size_t size_of_indices(void) { return (size_t)mpg_ranks_count() * sizeof(int32_t); }

static joined **find_joined(const mpg_device *device, const int32_t *indices) {
  joined **link = &state_of(device)->joined;
  while (*link && memcmp((*link)->indices, indices, size_of_indices()) != 0) link = &(*link)->next;
  return link;
}

mpg_gpu_communicator *mpg_gpu_communicator_of(const mpg_device *device, const int32_t *indices,
                                              const mpg_gpu_communicators **calls) {
  if (!is_gpu(device)) return NULL;
  const joined *found = *find_joined(device, indices);
  *calls = state_of(device)->driver->communicators;
  return found ? found->communicator : NULL;
}

static mpg_status check_gpu(mpg_device *device) {
  if (!is_gpu(device))
    return mpg_fail(MPG_VALUE_ERROR, "%s is not a GPU of this process", mpg_device_text(device));
  return usable(device);
}

mpg_status mpg_gpu_communicator_join(mpg_device *device, const int32_t *indices, const char *id) {
  MPG_TRY(check_gpu(device));
  joined **link = find_joined(device, indices);
  if (*link)
    return mpg_fail(MPG_ERROR, "%s has already joined these GPUs", mpg_device_text(device));
  joined *new = mpg_malloc(sizeof *new + size_of_indices());
  if (!new) return mpg_out_of_host_memory(sizeof *new + size_of_indices());
  new->next = NULL;
  memcpy(new->indices, indices, size_of_indices());
  mpg_status status = state_of(device)->driver->communicators->join(
      device->id, id, mpg_ranks_own(), mpg_ranks_count(), &new->communicator);
  if (status == MPG_OK)
    *link = new;
  else
    mpg_free(new);
  return status;
}

void mpg_gpu_communicator_forget(mpg_device *device, const int32_t *indices) {
  joined **link = is_gpu(device) ? find_joined(device, indices) : NULL,
         *found = link ? *link : NULL;
  if (!found) return;
  *link = found->next;
  state_of(device)->driver->communicators->leave(found->communicator);
  mpg_free(found);
}

mpg_status mpg_gpu_card_name(mpg_device *device, char *name, size_t size) {
  MPG_TRY(check_gpu(device));
  return state_of(device)->driver->communicators->card(device->id, name, size);
}

mpg_status mpg_gpu_communicator_id(mpg_device *device, char *id) {
  MPG_TRY(check_gpu(device));
  return state_of(device)->driver->communicators->id(id);
}

const mpg_backend mpg_gpu_backend = {
    .name = "gpu",
    .open = gpu_open,
    .stop = gpu_stop,
    .close = gpu_close,
    .allocate = gpu_allocate,
    .free = gpu_free,
    .trim = gpu_trim,
    .drain = gpu_drain,
    .enqueue = gpu_enqueue,
    .publish = gpu_publish,
    .wake = gpu_wake,
    .retract = gpu_retract,
    .wait = gpu_wait,
    .fork_prepare = gpu_fork_prepare,
    .fork_done = gpu_fork_done,
    .run_wait = gpu_run_wait,
    .run_signal = gpu_run_signal,
    .copy_to_host = gpu_copy_to_host,
    .copy_from_host = gpu_copy_from_host,
    .run_copy = gpu_run_copy,
    .run_copy_to_host = gpu_run_copy_to_host,
    .memory = gpu_memory,
    .capture_begin = gpu_capture_begin,
    .capture_void = gpu_capture_void,
    .capture_end = gpu_capture_end,
    .capture_run = gpu_capture_run,
    .capture_free = gpu_capture_free,
    .capture_keys = gpu_capture_keys,
    .issued = gpu_issued,
    .work_failed = gpu_work_failed,
    .work_waits = gpu_work_waits,
    .collect = gpu_collect,
    .sharing = &gpu_sharing,
    .host_accessible = false,
    .runs_inline = false,
};
