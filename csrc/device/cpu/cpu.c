/* CPU devices: one worker thread each, fed through a queue (queue.h). */
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "device/cpu/file_memory.h"
#include "device/cpu/oversubscription.h"
#include "device/profiler.h"
#include "device/queue.h"

enum {
  HUGE_PAGE = 2 << 20,
  /* Arrays of at least this size are allocated by mmap and advised to use huge pages, which makes
   * their first touch 3 to 6 times as fast. */
  MAPPED_SIZE = HUGE_PAGE,
  /* Smaller arrays of a device with a directory are not in files, because each file costs a system
   * call and at least a page. */
  FILE_SIZE = 64 << 10,
};

typedef struct cpu_state {
  mpg_queue queue;
  mpg_sleepers sleepers;
  int omp_threads;                       /* the last OpenMP thread count that the worker has set */
  mpg_oversubscription oversubscription; /* used only by the worker */
  /* Directory of the files that are the device's memory; owned. NULL if its memory is anonymous. */
  char *directory;
} cpu_state;

static mpg_status cpu_open(mpg_device *device) {
  cpu_state *state = mpg_aligned_malloc(_Alignof(cpu_state), sizeof *state);
  if (!state) return mpg_out_of_host_memory(sizeof *state);
  memset(state, 0, sizeof *state);
  mpg_queue_init(&state->queue);
  mpg_sleepers_init(&state->sleepers);
  device->backend_state = state;
  return MPG_OK;
}

const char *mpg_device_directory(const mpg_device *device) {
  /* only the CPU backends, which have this state, are host_accessible */
  if (!device->backend->host_accessible) return NULL;
  return ((cpu_state *)device->backend_state)->directory;
}

void mpg_device_set_directory(mpg_device *device, char *directory) {
  ((cpu_state *)device->backend_state)->directory = directory;
}

/* --- Timeline --------------------------------------------------------------------------------- */

static void reach(mpg_device *device, cpu_state *state, mpg_tick tick) {
  /* Sequentially consistent, like the accesses to wake_at, so that no sleeper is missed. */
  atomic_store(device->completed, tick);
  mpg_sleepers_passed(&state->sleepers, &state->queue, tick);
}

static bool cpu_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  cpu_state *state = device->backend_state;
  return mpg_sleepers_wait(&state->sleepers, &state->queue, device->completed, tick, timeout_ns,
                           false);
}

/* --- Queue ------------------------------------------------------------------------------------ */

static void *worker_main(void *argument);

static mpg_status cpu_enqueue(mpg_device *device, const mpg_submission *submission,
                              mpg_tick first_tick) {
  return mpg_queue_enqueue(&((cpu_state *)device->backend_state)->queue, device, worker_main,
                           submission, first_tick);
}
static void cpu_publish(mpg_device *device) {
  mpg_queue_publish(&((cpu_state *)device->backend_state)->queue);
}
static void cpu_wake(mpg_device *device) {
  mpg_queue_wake(&((cpu_state *)device->backend_state)->queue);
}
static void cpu_retract(mpg_device *device) {
  mpg_queue_retract(&((cpu_state *)device->backend_state)->queue);
}
static void cpu_stop(mpg_device *device) {
  mpg_queue_stop(&((cpu_state *)device->backend_state)->queue);
}

/* --- Worker ----------------------------------------------------------------------------------- */

static bool cpu_run_wait(mpg_run *run, mpg_point point) {
  if (mpg_queue_wait(&((cpu_state *)run->device->backend_state)->queue, run->device, point))
    return true;
  run->blocked_on = point; /* happens only if the worker has been asked to stop */
  return false;
}

static void cpu_run_signal(mpg_run *run, mpg_tick tick) {
  reach(run->device, run->device->backend_state, tick);
}

static void *worker_main(void *argument) {
  mpg_device *device = argument;
  cpu_state *state = device->backend_state;
  mpg_worker_set_device(device);
#ifdef __linux__
  pthread_setname_np(pthread_self(), mpg_device_text(device));
#endif
  state->omp_threads = 0;
  mpg_team_spin team_spin = mpg_team_spin_setting();
  for (mpg_record *next; (next = mpg_queue_next(&state->queue));) {
    mpg_task *task = &next->task;
    atomic_store_explicit(&device->at.core, mpg_this_core(), memory_order_relaxed);
    int threads = atomic_load_explicit(&device->num_threads, memory_order_relaxed);
    if (threads != state->omp_threads) omp_set_num_threads(state->omp_threads = threads);
    for (int i = 0; i < task->submission.num_points; i++)
      if (!mpg_queue_wait(&state->queue, device, task->submission.points[i])) goto end;
    mpg_point blocked_on = {0};
    while (!mpg_task_advance(device, task, &blocked_on))
      if (!mpg_queue_wait(&state->queue, device, blocked_on)) goto end;
    mpg_tick last = mpg_task_last_tick(task);
    mpg_queue_pop(&state->queue, next);
    reach(device, state, last);
    mpg_oversubscription_look(&state->oversubscription, team_spin, threads);
  }
end:
  mpg_oversubscription_close(&state->oversubscription);
  return NULL;
}

static void cpu_close(mpg_device *device) {
  cpu_state *state = device->backend_state;
  mpg_queue_join(&state->queue);
  while (!mpg_queue_empty(&state->queue)) {
    mpg_record *left = mpg_queue_front(&state->queue);
    mpg_task_drop(device, &left->task);
    mpg_tick last = mpg_task_last_tick(&left->task);
    mpg_queue_pop(&state->queue, left);
    reach(device, state, last);
  }
  mpg_device_free_kernel_cache(device);
}

static void cpu_fork_prepare(mpg_device *device) {
  pthread_mutex_lock(&((cpu_state *)device->backend_state)->queue.mutex);
}

static void cpu_fork_done(mpg_device *device, bool child) {
  cpu_state *state = device->backend_state;
  if (!child) {
    pthread_mutex_unlock(&state->queue.mutex);
    return;
  }
  mpg_queue_forget_worker(&state->queue);
  mpg_oversubscription_forget(&state->oversubscription);
  mpg_sleepers_init(&state->sleepers);
}

/* --- Memory ----------------------------------------------------------------------------------- */

static mpg_status refused(mpg_device *device, size_t size) {
  return mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "%s: the system could not allocate %zu bytes",
                  mpg_device_text(device), size);
}

static mpg_status cpu_allocate(mpg_device *device, size_t size, void **memory) {
  const char *directory = mpg_device_directory(device);
  if (directory && size >= FILE_SIZE) return mpg_file_memory_allocate(directory, size, memory);
  if (size < MAPPED_SIZE) {
    *memory = mpg_aligned_malloc(64, size);
    return *memory ? MPG_OK : refused(device, size);
  }
  size_t total;
  if (!mpg_size_add(size, HUGE_PAGE + 4095, &total)) return refused(device, size);
  size_t length = mpg_align_up(size, 4096);
  total = length + HUGE_PAGE;
  char *mapped = mpg_memory_refused() ? MAP_FAILED
                                      : mmap(NULL, total, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return refused(device, size);
  char *aligned = (char *)mpg_align_up((size_t)mapped, HUGE_PAGE);
  if (aligned > mapped) munmap(mapped, (size_t)(aligned - mapped));
  size_t tail = (size_t)(mapped + total - (aligned + length));
  if (tail) munmap(aligned + length, tail);
#ifdef MADV_HUGEPAGE
  madvise(aligned, length, MADV_HUGEPAGE); /* only a hint, so failure is ignored */
#endif
  *memory = aligned;
  return MPG_OK;
}

static void cpu_free(mpg_device *device, void *memory, size_t size) {
  bool in_file = mpg_device_directory(device) && size >= FILE_SIZE;
  if (in_file)
    mpg_file_memory_free(memory, size);
  else if (size < MAPPED_SIZE)
    mpg_free(memory);
  else
    munmap(memory, mpg_align_up(size, 4096));
}

static mpg_status cpu_copy_to_host(mpg_device *device, void *host, const void *memory,
                                   size_t size) {
  (void)device;
  if (size) memcpy(host, memory, size);
  return MPG_OK;
}

static mpg_status cpu_copy_from_host(mpg_device *device, void *memory, const void *host,
                                     size_t size) {
  (void)device;
  if (size) memcpy(memory, host, size);
  return MPG_OK;
}

const mpg_backend mpg_cpu_backend = {
    .name = "cpu",
    .open = cpu_open,
    .stop = cpu_stop,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .free = cpu_free,
    .enqueue = cpu_enqueue,
    .publish = cpu_publish,
    .wake = cpu_wake,
    .retract = cpu_retract,
    .wait = cpu_wait,
    .fork_prepare = cpu_fork_prepare,
    .fork_done = cpu_fork_done,
    .run_wait = cpu_run_wait,
    .run_signal = cpu_run_signal,
    .copy_to_host = cpu_copy_to_host,
    .copy_from_host = cpu_copy_from_host,
    .host_accessible = true,
    .runs_inline = true,
};
