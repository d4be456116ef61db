/* The backend of remote devices, which have no memory in this process. Their only work is to
 * receive data from their ranks. */

#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/ranks/engine.h"

typedef struct remote_state {
  mpg_device *device;
  struct remote_state *next;
  mpg_task_list published, enqueued; /* `enqueued` is guarded by the host lock */
  mpg_message *receiving;            /* message that the running work waits for; NULL if none */
  /* Host buffer for the received data if the target is on a GPU; NULL if data is received in
   * place. */
  char *staged;
  bool copies; /* the running work copies to a GPU and has released the lock */
} remote_state;

static mpg_engine *const engine = &mpg_the_engine;
static remote_state *remotes; /* runtime state; guarded by the engine's lock */

static mpg_status remote_open(mpg_device *device) {
  remote_state *state = mpg_calloc(1, sizeof *state);
  if (!state) return mpg_out_of_host_memory(sizeof *state);
  state->device = device;
  mpg_task_list_init(&state->published);
  mpg_task_list_init(&state->enqueued);
  device->backend_state = state;
  pthread_mutex_lock(&engine->lock);
  remote_state **last = &remotes;
  while (*last) last = &(*last)->next;
  *last = state;
  pthread_mutex_unlock(&engine->lock);
  return MPG_OK;
}

/* --- Submission ------------------------------------------------------------------------------- */

static mpg_status remote_enqueue(mpg_device *device, const mpg_submission *submission,
                                 mpg_tick first_tick) {
  remote_state *state = device->backend_state;
  pthread_mutex_lock(&engine->lock);
  mpg_status status = mpg_engine_start();
  pthread_mutex_unlock(&engine->lock);
  MPG_TRY(status);
  return mpg_task_list_add(&state->enqueued, submission, first_tick);
}

static void remote_publish(mpg_device *device) {
  remote_state *state = device->backend_state;
  pthread_mutex_lock(&engine->lock);
  mpg_task_list_move(&state->enqueued, &state->published);
  mpg_engine_wake();
  pthread_mutex_unlock(&engine->lock);
}

static void remote_retract(mpg_device *device) {
  remote_state *state = device->backend_state;
  mpg_task_list_drop(&state->enqueued);
}

/* --- Running, under the engine's lock --------------------------------------------------------- */

static bool runnable(const remote_state *state) {
  if (state->copies) return false;
  return state->receiving ? state->published.first && state->receiving->done
                          : mpg_task_list_ready(&state->published);
}

static void run_next(remote_state *state) {
  mpg_kept_task *kept = state->published.first;
  mpg_device *outer = mpg_worker_device();
  mpg_worker_set_device(state->device);
  bool done = mpg_task_advance(state->device, &kept->task, &kept->blocked_on);
  mpg_worker_set_device(outer);
  if (!done) return;
  mpg_task_list_take(&state->published);
  atomic_store(state->device->completed, mpg_task_last_tick(&kept->task));
  mpg_free(kept);
}

bool mpg_remote_advance(bool *left) {
  bool moved = false;
  for (remote_state *state = remotes; state; state = state->next) {
    for (; runnable(state); moved = true) run_next(state);
    *left |= state->published.first != NULL;
  }
  return moved;
}

static bool remote_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  int64_t end = mpg_clock_ns() + timeout_ns;
  bool worker = mpg_worker_device() != NULL, reached;
  _Atomic(int) *count = worker ? &engine->workers : &engine->hosts;
  atomic_fetch_add(count, 1);
  for (int turns = 0; !(reached = mpg_tick_reached(device, tick));) {
    bool left, moved = false;
    if (pthread_mutex_trylock(&engine->lock) == 0) {
      moved = mpg_engine_advance(&left);
      pthread_mutex_unlock(&engine->lock);
    }
    if (moved) {
      turns = 0;
      continue;
    }
    if (turns % 16 == 15 && mpg_clock_ns() > end) break;
    mpg_engine_pause(&turns, worker                          ? MPG_POLLER_WORK
                             : atomic_load(&engine->workers) ? MPG_POLLER_IDLE
                                                             : MPG_POLLER_HOST);
  }
  atomic_fetch_sub(count, 1);
  return reached || mpg_tick_reached(device, tick);
}

static bool remote_run_wait(mpg_run *run, mpg_point point) {
  run->blocked_on = point;
  return false;
}

static void remote_run_signal(mpg_run *run, mpg_tick tick) {
  atomic_store(run->device->completed, tick);
}

static mpg_status begin_receive(remote_state *state, const mpg_transfer *transfer,
                                const mpg_device *device, void *target) {
  if (!device->backend->host_accessible && transfer->size) {
    state->staged = mpg_malloc(transfer->size);
    if (!state->staged) return mpg_out_of_host_memory(transfer->size);
  }
  mpg_status status =
      mpg_message_receive(transfer, state->staged ? state->staged : target, &state->receiving);
  if (status != MPG_OK) {
    mpg_free(state->staged);
    state->staged = NULL;
  }
  return status;
}

mpg_status mpg_transfer_receive(mpg_run *run, const mpg_transfer *transfer, mpg_device *device,
                                void *target, bool *done) {
  remote_state *state = run->device->backend_state;
  *done = false;
  if (!state->receiving) MPG_TRY(begin_receive(state, transfer, device, target));
  if (!state->receiving->done) {
    run->blocked_on = (mpg_point){.device = run->device, .tick = run->last_tick};
    return MPG_OK;
  }
  mpg_status status = state->receiving->status;
  if (status != MPG_OK) mpg_fail(status, "%s", state->receiving->text);
  bool gone = mpg_message_free(state->receiving);
  state->receiving = NULL;
  *done = true;
  if (state->staged && status == MPG_OK) { /* releases the lock, because copying to a GPU is slow */
    state->copies = true;
    pthread_mutex_unlock(&engine->lock);
    status = device->backend->copy_from_host(device, target, state->staged, transfer->size);
    pthread_mutex_lock(&engine->lock);
    state->copies = false;
  }
  /* If MPI may still write to the buffer, leaks it. */
  if (gone) mpg_free(state->staged);
  state->staged = NULL;
  return status;
}

/* --- Stopping and forking --------------------------------------------------------------------- */

static void remote_stop(mpg_device *device) {
  (void)device;
  mpg_engine_stop();
}

static void remote_close(mpg_device *device) {
  remote_state *state = device->backend_state;
  pthread_mutex_lock(&engine->lock);
  while (state->copies) {
    pthread_mutex_unlock(&engine->lock);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pthread_mutex_lock(&engine->lock);
  }
  while (state->published.first) {
    mpg_kept_task *kept = mpg_task_list_take(&state->published);
    mpg_task_drop(device, &kept->task);
    atomic_store(device->completed, mpg_task_last_tick(&kept->task));
    mpg_free(kept);
  }
  pthread_mutex_unlock(&engine->lock);
}

/* Empty, because runtime.c holds the engine's lock during a fork. */
static void remote_fork_prepare(mpg_device *device) { (void)device; }
static void remote_fork_done(mpg_device *device, bool child) { (void)device, (void)child; }

/* --- Memory, which remote devices do not have ------------------------------------------------- */

static mpg_status remote_allocate(mpg_device *device, size_t size, void **memory) {
  (void)device, (void)size;
  *memory = MPG_NO_BYTES;
  return MPG_OK;
}
static void remote_free(mpg_device *device, void *memory, size_t size) {
  (void)device, (void)memory, (void)size;
}

static mpg_status remote_copy_to_host(mpg_device *device, void *host, const void *memory,
                                      size_t size) {
  (void)host, (void)memory, (void)size;
  return mpg_fail(MPG_ERROR,
                  "the array is on %s, but this is rank %d, which does not have its contents. "
                  "mx.parallel.fetch(x), called by all ranks, copies them to all, and "
                  "mx.parallel.save writes parameters and optimizer states of all ranks",
                  mpg_device_text(device), engine->rank);
}
static mpg_status remote_copy_from_host(mpg_device *device, void *memory, const void *host,
                                        size_t size) {
  /* Nothing to do: the rank that owns the device writes the same data. */
  (void)device, (void)memory, (void)host, (void)size;
  return MPG_OK;
}

const mpg_backend mpg_remote_backend = {
    .name = "remote",
    .open = remote_open,
    .stop = remote_stop,
    .close = remote_close,
    .allocate = remote_allocate,
    .free = remote_free,
    .enqueue = remote_enqueue,
    .publish = remote_publish,
    .retract = remote_retract,
    .wait = remote_wait,
    .fork_prepare = remote_fork_prepare,
    .fork_done = remote_fork_done,
    .run_wait = remote_run_wait,
    .run_signal = remote_run_signal,
    .copy_to_host = remote_copy_to_host,
    .copy_from_host = remote_copy_from_host,
    .host_accessible = false,
    .runs_in_wait = true,
    .runs_inline = false,
};
