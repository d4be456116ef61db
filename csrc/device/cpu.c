/* CPU devices: one worker thread each, fed through a queue with one producer (whoever holds the host lock) and one
 * consumer. The queue is a chain of segments that holds tasks of any size one after the other. `published` counts tasks;
 * the worker reads nothing beyond it. Nobody takes a lock unless somebody sleeps.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/profiler.h"

enum {
  SEGMENT_SIZE = 1 << 16,
  LARGEST_RECORD = SEGMENT_SIZE / 8, /* larger tasks keep points and payload in memory of their own */
  RECORD_ALIGNMENT = 16,
  HUGE_PAGE = 2 << 20,
  MAPPED_SIZE = HUGE_PAGE, /* array memory from here on is mapped: its first touch is 3 to 6 times as fast on huge pages */
};
static const int64_t SPIN_MIN_NS = 1000, WAIT_SLICE_NS = 20000000;
#define NEVER UINT64_MAX

typedef struct segment {
  struct segment *next; /* written by the producer before it publishes tasks in it */
  _Alignas(64) char data[SEGMENT_SIZE];
} segment;

typedef struct record {
  size_t size; /* of record, points and payload here; 0: go on in the next segment */
  void *apart; /* points and payload, when too large for a segment; owned */
  mpg_task task;
} record;

typedef struct cpu_queue {
  /* The producer's, under the host lock. */
  segment *write_segment;
  size_t write_offset;
  uint64_t enqueued;
  segment *published_segment; /* where to go back to when what was enqueued is retracted */
  size_t published_offset;
  bool started;

  /* Shared; what is written with every task is apart from what is only looked at. */
  _Alignas(64) _Atomic uint64_t published;
  _Alignas(64) _Atomic bool sleeping;
  _Atomic bool stopping;
  _Atomic(segment *) spare; /* a used segment, on its way back to the producer */
  _Atomic mpg_tick wake_at; /* the lowest tick that a sleeping waiter wants */
  pthread_mutex_t mutex;    /* for sleeping */
  pthread_cond_t work_arrived, tick_reached;

  /* The worker's; the producer's when there is none. */
  _Alignas(64) segment *read_segment;
  size_t read_offset;
  uint64_t consumed;
  int omp_threads;
  int64_t spin_ns; /* grows when spinning was worth it */
  pthread_t thread;
} cpu_queue;

static void init_sleep(cpu_queue *queue) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&queue->mutex, NULL);
  pthread_cond_init(&queue->work_arrived, &attributes);
  pthread_cond_init(&queue->tick_reached, &attributes);
  pthread_condattr_destroy(&attributes);
}

static mpg_status cpu_open(mpg_device *device) {
  cpu_queue *queue = mpg_aligned_malloc(_Alignof(cpu_queue), sizeof *queue);
  if (!queue) return mpg_out_of_host_memory(sizeof *queue);
  memset(queue, 0, sizeof *queue);
  atomic_store(&queue->wake_at, NEVER);
  init_sleep(queue);
  device->backend_state = queue;
  return MPG_OK;
}

/* --- Timeline ------------------------------------------------------------------------------------------------------ */

static void reach(mpg_device *device, cpu_queue *queue, mpg_tick tick) {
  atomic_store(&device->completed, tick); /* sequentially consistent: against wake_at in cpu_wait */
  if (tick < atomic_load(&queue->wake_at)) return;
  pthread_mutex_lock(&queue->mutex);
  atomic_store(&queue->wake_at, NEVER); /* who is not served yet puts its tick in again */
  pthread_cond_broadcast(&queue->tick_reached);
  pthread_mutex_unlock(&queue->mutex);
}

static bool cpu_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  cpu_queue *queue = device->backend_state;
  if (mpg_tick_reached(device, tick)) return true;
  int64_t end = mpg_clock_ns() + timeout_ns;
  struct timespec until = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
  bool reached, late = false;
  pthread_mutex_lock(&queue->mutex);
  for (;;) {
    if (tick < atomic_load(&queue->wake_at)) atomic_store(&queue->wake_at, tick);
    reached = atomic_load(&device->completed) >= tick;
    if (reached || late) break;
    late = pthread_cond_timedwait(&queue->tick_reached, &queue->mutex, &until) == ETIMEDOUT;
  }
  pthread_mutex_unlock(&queue->mutex);
  return reached;
}

/* --- Queue --------------------------------------------------------------------------------------------------------- */

static size_t record_points_offset(void) { return mpg_align_up(sizeof(record), RECORD_ALIGNMENT); }

static void release_segment(cpu_queue *queue, segment *used) {
  mpg_free(atomic_exchange_explicit(&queue->spare, used, memory_order_acq_rel));
}

/* The next unread record. The caller knows that there is one. */
static record *front(cpu_queue *queue) {
  for (;;) {
    record *next = (record *)(queue->read_segment->data + queue->read_offset);
    if (queue->read_offset + sizeof *next <= SEGMENT_SIZE && next->size) return next;
    segment *used = queue->read_segment;
    queue->read_segment = used->next;
    queue->read_offset = 0;
    release_segment(queue, used);
  }
}

static void pop(cpu_queue *queue, record *done) {
  mpg_free(done->apart);
  queue->read_offset += done->size;
  queue->consumed++;
}

/* Room for `size` bytes at the write position. NULL: no memory. */
static char *make_room(cpu_queue *queue, size_t size) {
  if (queue->write_segment && queue->write_offset + size <= SEGMENT_SIZE)
    return queue->write_segment->data + queue->write_offset;
  segment *fresh = atomic_exchange_explicit(&queue->spare, NULL, memory_order_acq_rel);
  if (!fresh) fresh = mpg_aligned_malloc(_Alignof(segment), sizeof *fresh);
  if (!fresh) return NULL;
  fresh->next = NULL;
  if (queue->write_segment) {
    if (queue->write_offset + sizeof(record) <= SEGMENT_SIZE)
      ((record *)(queue->write_segment->data + queue->write_offset))->size = 0;
    queue->write_segment->next = fresh;
  } else { /* the first one; nothing was published, so there is no reader yet */
    queue->read_segment = queue->published_segment = fresh;
  }
  queue->write_segment = fresh;
  queue->write_offset = 0;
  return fresh->data;
}

static void *worker_main(void *argument);

static mpg_status start_worker(mpg_device *device, cpu_queue *queue) {
  sigset_t all, before; /* signals are for the host's threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&queue->thread, NULL, worker_main, device);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) return mpg_fail(MPG_ERROR, "%s: its worker thread could not be started: %s", device->text, strerror(error));
  queue->started = true;
  return MPG_OK;
}

static mpg_status cpu_enqueue(mpg_device *device, const mpg_submission *submission, mpg_tick first_tick) {
  cpu_queue *queue = device->backend_state;
  if (!queue->started) MPG_TRY(start_worker(device, queue));
  size_t points_size = mpg_align_up((size_t)submission->num_points * sizeof(mpg_point), RECORD_ALIGNMENT);
  size_t content, size;
  if (!mpg_size_add(points_size, submission->payload_size, &content) || content > SIZE_MAX / 2)
    return mpg_out_of_host_memory(SIZE_MAX);
  size = record_points_offset() + mpg_align_up(content, RECORD_ALIGNMENT);
  char *apart = NULL;
  if (size > LARGEST_RECORD) {
    apart = mpg_malloc(content);
    if (!apart) return mpg_out_of_host_memory(content);
    size = record_points_offset();
  }
  record *made = (record *)make_room(queue, size);
  if (!made) {
    mpg_free(apart);
    return mpg_out_of_host_memory(sizeof(segment));
  }
  char *points = apart ? apart : (char *)made + record_points_offset();
  made->size = size;
  made->apart = apart;
  made->task = (mpg_task){.submission = *submission, .first_tick = first_tick};
  made->task.submission.points = (mpg_point *)points;
  made->task.submission.payload = points + points_size;
  if (submission->num_points) memcpy(points, submission->points, (size_t)submission->num_points * sizeof(mpg_point));
  if (submission->payload_size) memcpy(points + points_size, submission->payload, submission->payload_size);
  queue->write_offset += size;
  queue->enqueued++;
  return MPG_OK;
}

static void cpu_publish(mpg_device *device) {
  cpu_queue *queue = device->backend_state;
  queue->published_segment = queue->write_segment;
  queue->published_offset = queue->write_offset;
  atomic_store(&queue->published, queue->enqueued); /* sequentially consistent: against `sleeping` in next_record */
  if (!atomic_load(&queue->sleeping)) return;
  pthread_mutex_lock(&queue->mutex);
  pthread_cond_signal(&queue->work_arrived);
  pthread_mutex_unlock(&queue->mutex);
}

static void cpu_retract(mpg_device *device) {
  cpu_queue *queue = device->backend_state;
  uint64_t published = atomic_load(&queue->published);
  segment *at = queue->published_segment;
  size_t offset = queue->published_offset;
  for (uint64_t left = queue->enqueued - published; left;) {
    record *forgotten = (record *)(at->data + offset);
    if (offset + sizeof *forgotten > SEGMENT_SIZE || !forgotten->size) {
      at = at->next;
      offset = 0;
      continue;
    }
    mpg_free(forgotten->apart);
    offset += forgotten->size;
    left--;
  }
  if (queue->published_segment) {
    for (segment *extra = queue->published_segment->next; extra;) {
      segment *next = extra->next;
      release_segment(queue, extra);
      extra = next;
    }
    queue->published_segment->next = NULL;
  }
  queue->write_segment = queue->published_segment;
  queue->write_offset = queue->published_offset;
  queue->enqueued = published;
}

/* --- Worker -------------------------------------------------------------------------------------------------------- */

/* Waits for another device on the worker. False: asked to stop. */
static bool worker_wait(mpg_device *device, mpg_point point) {
  if (mpg_tick_reached(point.device, point.tick)) return true;
  cpu_queue *queue = device->backend_state;
  int64_t begin = mpg_clock_ns();
  bool reached = mpg_tick_spin(point.device, point.tick, mpg_spin_limit_ns());
  if (!reached) {
    atomic_store_explicit(&device->at.tick, point.tick, memory_order_relaxed);
    atomic_store_explicit(&device->at.peer, point.device->ordinal + 1, memory_order_relaxed);
    while (!reached && !atomic_load_explicit(&queue->stopping, memory_order_relaxed))
      reached = point.device->backend->wait(point.device, point.tick, WAIT_SLICE_NS);
    atomic_store_explicit(&device->at.peer, 0, memory_order_relaxed);
  }
  if (reached && mpg_profiler_on())
    mpg_profiler_record(device, &(mpg_event){.name = "wait", .kind = MPG_EVENT_WAIT, .peer = point.device->ordinal,
                                             .begin_ns = begin, .end_ns = mpg_clock_ns()});
  return reached;
}

static bool cpu_run_wait(mpg_run *run, mpg_point point) {
  if (worker_wait(run->device, point)) return true;
  run->blocked_on = point; /* only when the worker has been asked to stop */
  return false;
}

static void cpu_run_signal(mpg_run *run, mpg_tick tick) { reach(run->device, run->device->backend_state, tick); }

/* The next task, or NULL when asked to stop. */
static record *next_record(cpu_queue *queue) {
  if (atomic_load_explicit(&queue->published, memory_order_acquire) == queue->consumed) {
    int64_t limit = mpg_spin_limit_ns();
    if (limit) {
      int64_t end = mpg_clock_ns() + queue->spin_ns;
      bool arrived = false;
      do {
        for (int i = 0; i < 32 && !arrived; i++) {
          arrived = atomic_load_explicit(&queue->published, memory_order_acquire) != queue->consumed;
          if (!arrived) mpg_cpu_pause();
        }
      } while (!arrived && mpg_clock_ns() < end);
      queue->spin_ns = arrived ? queue->spin_ns * 2 : queue->spin_ns / 2;
      if (queue->spin_ns > limit) queue->spin_ns = limit;
      if (queue->spin_ns < SPIN_MIN_NS) queue->spin_ns = SPIN_MIN_NS;
    }
    if (atomic_load_explicit(&queue->published, memory_order_acquire) == queue->consumed) {
      pthread_mutex_lock(&queue->mutex);
      atomic_store(&queue->sleeping, true);
      while (atomic_load(&queue->published) == queue->consumed && !atomic_load(&queue->stopping))
        pthread_cond_wait(&queue->work_arrived, &queue->mutex);
      atomic_store(&queue->sleeping, false);
      pthread_mutex_unlock(&queue->mutex);
    }
  }
  return atomic_load(&queue->stopping) ? NULL : front(queue);
}

static void *worker_main(void *argument) {
  mpg_device *device = argument;
  cpu_queue *queue = device->backend_state;
  mpg_worker_set_device(device);
#ifdef __linux__
  pthread_setname_np(pthread_self(), device->text);
#endif
  queue->omp_threads = 0;
  queue->spin_ns = mpg_spin_limit_ns();
  for (record *next; (next = next_record(queue));) {
    mpg_task *task = &next->task;
    int threads = atomic_load_explicit(&device->num_threads, memory_order_relaxed);
    if (threads != queue->omp_threads) omp_set_num_threads(queue->omp_threads = threads);
    for (int i = 0; i < task->submission.num_points; i++)
      if (!worker_wait(device, task->submission.points[i])) return NULL;
    mpg_point blocked_on = {0};
    while (!mpg_task_advance(device, task, &blocked_on))
      if (!worker_wait(device, blocked_on)) return NULL;
    mpg_tick last = mpg_task_last_tick(task);
    pop(queue, next);
    reach(device, queue, last);
  }
  return NULL;
}

static void cpu_stop(mpg_device *device) {
  cpu_queue *queue = device->backend_state;
  pthread_mutex_lock(&queue->mutex);
  atomic_store(&queue->stopping, true);
  pthread_cond_signal(&queue->work_arrived);
  pthread_mutex_unlock(&queue->mutex);
}

static void cpu_close(mpg_device *device) {
  cpu_queue *queue = device->backend_state;
  if (queue->started && !pthread_equal(queue->thread, pthread_self())) pthread_join(queue->thread, NULL);
  queue->started = false;
  while (queue->consumed < atomic_load(&queue->published)) {
    record *left = front(queue);
    mpg_task_drop(device, &left->task);
    mpg_tick last = mpg_task_last_tick(&left->task);
    pop(queue, left);
    reach(device, queue, last);
  }
}

static void cpu_fork_prepare(mpg_device *device) { pthread_mutex_lock(&((cpu_queue *)device->backend_state)->mutex); }

static void cpu_fork_done(mpg_device *device, bool child) {
  cpu_queue *queue = device->backend_state;
  if (!child) {
    pthread_mutex_unlock(&queue->mutex);
    return;
  }
  init_sleep(queue);
  queue->started = false;
  atomic_store(&queue->sleeping, false);
  atomic_store(&queue->wake_at, NEVER);
}

/* --- Memory -------------------------------------------------------------------------------------------------------- */

static mpg_status refused(mpg_device *device, size_t size) {
  return mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "%s: the system refused %zu bytes", device->text, size);
}

static mpg_status cpu_allocate(mpg_device *device, size_t size, void **memory) {
  if (size < MAPPED_SIZE) {
    *memory = mpg_aligned_malloc(64, size);
    return *memory ? MPG_OK : refused(device, size);
  }
  size_t total;
  if (!mpg_size_add(size, HUGE_PAGE + 4095, &total)) return refused(device, size);
  size_t length = mpg_align_up(size, 4096);
  total = length + HUGE_PAGE;
  char *mapped = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return refused(device, size);
  char *aligned = (char *)mpg_align_up((size_t)mapped, HUGE_PAGE);
  if (aligned > mapped) munmap(mapped, (size_t)(aligned - mapped));
  size_t tail = (size_t)(mapped + total - (aligned + length));
  if (tail) munmap(aligned + length, tail);
#ifdef MADV_HUGEPAGE
  madvise(aligned, length, MADV_HUGEPAGE); /* advice: may be refused */
#endif
  *memory = aligned;
  return MPG_OK;
}

static void cpu_free(mpg_device *device, void *memory, size_t size) {
  (void)device;
  if (size < MAPPED_SIZE)
    mpg_free(memory);
  else
    munmap(memory, mpg_align_up(size, 4096));
}

static mpg_status cpu_copy_to_host(mpg_device *device, void *host, const void *memory, size_t size) {
  (void)device;
  if (size) memcpy(host, memory, size);
  return MPG_OK;
}

static mpg_status cpu_copy_from_host(mpg_device *device, void *memory, const void *host, size_t size) {
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
