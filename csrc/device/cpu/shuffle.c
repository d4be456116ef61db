/* The shuffled engine: a mock backend without workers, for tests. Tasks are kept until a thread
 * waits. The waiting thread runs them one by one, each time choosing a random device whose next
 * task can run. So if work lacks a point that it must wait for, tests fail reproducibly. Memory and
 * copies use the CPU backend. */
#include <errno.h>
#include <omp.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/philox.h"
#include "device/internal.h"

typedef struct shuffle_queue {
  mpg_device *device;
  mpg_task_list published, enqueued;
} shuffle_queue;

/* Runtime state: the queues of all devices under one lock. One thread at a time runs tasks. */
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* indexed by device ordinal; NULL if the device was not opened by this backend */
  shuffle_queue **queues;
  size_t capacity, count;
  bool running;
  int forking;
  uint64_t seed, draws;
} shuffle = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void mpg_shuffle_seed(uint64_t seed) {
  pthread_mutex_lock(&shuffle.lock);
  shuffle.seed = seed;
  shuffle.draws = 0;
  pthread_mutex_unlock(&shuffle.lock);
}

static shuffle_queue *queue_of(const mpg_device *device) { return shuffle.queues[device->ordinal]; }

static mpg_status shuffle_open(mpg_device *device) {
  if (!device->backend_state) MPG_TRY(mpg_cpu_backend.open(device));
  size_t ordinal = (size_t)device->ordinal;
  if (ordinal < shuffle.count && shuffle.queues[ordinal]) return MPG_OK;
  shuffle_queue *queue = mpg_malloc(sizeof *queue);
  if (!queue) return mpg_out_of_host_memory(sizeof *queue);
  queue->device = device;
  mpg_task_list_init(&queue->published);
  mpg_task_list_init(&queue->enqueued);
  pthread_mutex_lock(&shuffle.lock);
  mpg_status status =
      mpg_grow((void **)&shuffle.queues, &shuffle.capacity, ordinal + 1, sizeof(shuffle_queue *));
  if (status == MPG_OK) {
    while (shuffle.count <= ordinal) shuffle.queues[shuffle.count++] = NULL;
    shuffle.queues[ordinal] = queue;
  }
  pthread_mutex_unlock(&shuffle.lock);
  if (status != MPG_OK) mpg_free(queue);
  return status;
}

/* --- Submission ------------------------------------------------------------------------------- */

static mpg_status shuffle_enqueue(mpg_device *device, const mpg_submission *submission,
                                  mpg_tick first_tick) {
  return mpg_task_list_add(&queue_of(device)->enqueued, submission, first_tick);
}

static void shuffle_publish(mpg_device *device) {
  shuffle_queue *queue = queue_of(device);
  pthread_mutex_lock(&shuffle.lock);
  mpg_task_list_move(&queue->enqueued, &queue->published);
  pthread_cond_broadcast(&shuffle.changed);
  pthread_mutex_unlock(&shuffle.lock);
}

static void shuffle_retract(mpg_device *device) {
  shuffle_queue *queue = queue_of(device);
  mpg_task_list_drop(&queue->enqueued);
}

/* --- Running ---------------------------------------------------------------------------------- */

static bool runnable(const shuffle_queue *queue) {
  return queue && mpg_task_list_ready(&queue->published);
}

/* Returns a random runnable queue; NULL if no task can run. The lock is held. */
static shuffle_queue *draw(void) {
  uint32_t choices = 0;
  for (size_t i = 0; i < shuffle.count; i++) choices += runnable(shuffle.queues[i]);
  if (!choices) return NULL;
  uint32_t chosen = mpg_philox(shuffle.seed, 0, shuffle.draws++).value[0] % choices;
  for (size_t i = 0;; i++)
    if (runnable(shuffle.queues[i]) && chosen-- == 0) return shuffle.queues[i];
}

/* Runs the next task of a queue. Called with the lock held; releases it while the task runs. */
static void run_next(shuffle_queue *queue) {
  mpg_kept_task *kept = queue->published.first;
  mpg_device *device = queue->device, *outer = mpg_worker_device();
  shuffle.running = true;
  pthread_mutex_unlock(&shuffle.lock);
  int threads = omp_get_max_threads();
  omp_set_num_threads(atomic_load_explicit(&device->num_threads, memory_order_relaxed));
  mpg_worker_set_device(device);
  bool done = mpg_task_advance(device, &kept->task, &kept->blocked_on);
  mpg_worker_set_device(outer);
  omp_set_num_threads(threads);
  pthread_mutex_lock(&shuffle.lock);
  shuffle.running = false;
  if (done) {
    mpg_task_list_take(&queue->published);
    atomic_store_explicit(device->completed, mpg_task_last_tick(&kept->task), memory_order_release);
    mpg_free(kept);
  }
  pthread_cond_broadcast(&shuffle.changed);
}

static bool shuffle_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  int64_t end = mpg_clock_ns() + timeout_ns;
  pthread_mutex_lock(&shuffle.lock);
  while (!mpg_tick_reached(device, tick)) {
    shuffle_queue *queue = shuffle.running ? NULL : draw();
    if (queue) {
      run_next(queue);
    } else { /* another thread runs a task, or all tasks wait for other backends' devices */
      struct timespec soon;
      clock_gettime(CLOCK_REALTIME, &soon);
      soon.tv_nsec += 1000000;
      if (soon.tv_nsec >= 1000000000) soon.tv_sec++, soon.tv_nsec -= 1000000000;
      pthread_cond_timedwait(&shuffle.changed, &shuffle.lock, &soon);
    }
    if (mpg_clock_ns() > end) break;
  }
  bool reached = mpg_tick_reached(device, tick);
  pthread_mutex_unlock(&shuffle.lock);
  return reached;
}

void mpg_engine_run_ready(void) {
  pthread_mutex_lock(&shuffle.lock);
  for (shuffle_queue *queue; !shuffle.running && (queue = draw());) run_next(queue);
  pthread_mutex_unlock(&shuffle.lock);
}

static bool shuffle_run_wait(mpg_run *run, mpg_point point) {
  run->blocked_on = point;
  return false;
}

static void shuffle_run_signal(mpg_run *run, mpg_tick tick) {
  pthread_mutex_lock(&shuffle.lock);
  atomic_store_explicit(run->device->completed, tick, memory_order_release);
  pthread_cond_broadcast(&shuffle.changed);
  pthread_mutex_unlock(&shuffle.lock);
}

/* --- Stopping and forking. CPU workers may exist from before the mode was set. ---------------- */

static void shuffle_stop(mpg_device *device) { mpg_cpu_backend.stop(device); }

static void shuffle_close(mpg_device *device) {
  shuffle_queue *queue = queue_of(device);
  pthread_mutex_lock(&shuffle.lock);
  while (shuffle.running && !mpg_worker_device())
    pthread_cond_wait(&shuffle.changed, &shuffle.lock);
  while (queue->published.first) {
    mpg_kept_task *kept = mpg_task_list_take(&queue->published);
    mpg_task_drop(device, &kept->task);
    atomic_store_explicit(device->completed, mpg_task_last_tick(&kept->task), memory_order_release);
    mpg_free(kept);
  }
  pthread_cond_broadcast(&shuffle.changed);
  pthread_mutex_unlock(&shuffle.lock);
  mpg_cpu_backend.close(device);
}

static void shuffle_fork_prepare(mpg_device *device) {
  if (shuffle.forking++ == 0) pthread_mutex_lock(&shuffle.lock);
  mpg_cpu_backend.fork_prepare(device);
}

static void shuffle_fork_done(mpg_device *device, bool child) {
  mpg_cpu_backend.fork_done(device, child);
  if (--shuffle.forking > 0) return;
  if (child) {
    pthread_mutex_init(&shuffle.lock, NULL);
    pthread_cond_init(&shuffle.changed, NULL);
    shuffle.running = false;
  } else {
    pthread_mutex_unlock(&shuffle.lock);
  }
}

static mpg_status shuffle_allocate(mpg_device *device, size_t size, void **memory) {
  return mpg_cpu_backend.allocate(device, size, memory);
}
static void shuffle_free(mpg_device *device, void *memory, size_t size) {
  mpg_cpu_backend.free(device, memory, size);
}
static mpg_status shuffle_copy_to_host(mpg_device *device, void *host, const void *memory,
                                       size_t size) {
  return mpg_cpu_backend.copy_to_host(device, host, memory, size);
}
static mpg_status shuffle_copy_from_host(mpg_device *device, void *memory, const void *host,
                                         size_t size) {
  return mpg_cpu_backend.copy_from_host(device, memory, host, size);
}

const mpg_backend mpg_shuffle_backend = {
    .name = "cpu (shuffled)",
    .open = shuffle_open,
    .stop = shuffle_stop,
    .close = shuffle_close,
    .allocate = shuffle_allocate,
    .free = shuffle_free,
    .enqueue = shuffle_enqueue,
    .publish = shuffle_publish,
    .retract = shuffle_retract,
    .wait = shuffle_wait,
    .fork_prepare = shuffle_fork_prepare,
    .fork_done = shuffle_fork_done,
    .run_wait = shuffle_run_wait,
    .run_signal = shuffle_run_signal,
    .copy_to_host = shuffle_copy_to_host,
    .copy_from_host = shuffle_copy_from_host,
    .host_accessible = true,
    .runs_in_wait = true,
    .runs_inline = false, /* work must not run before a thread waits */
};
