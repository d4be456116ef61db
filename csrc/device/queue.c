/* The queue of a device's worker: a single-producer, single-consumer linked list of segments. */
#define _GNU_SOURCE
#include "device/queue.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/profiler.h"

enum {
  SEGMENT_SIZE = 1 << 16,
  /* Larger tasks keep points and payload in a separate allocation. */
  LARGEST_RECORD = SEGMENT_SIZE / 8,
  RECORD_ALIGNMENT = 16,
  LARGEST_KEPT = 1 << 20,
};
enum { AWAKE, ASLEEP }; /* values of queue->sleeping */
static const int64_t SPIN_MIN_NS = 1000, WAIT_SLICE_NS = 20000000;

struct mpg_queue_segment {
  /* Written by the producer before it publishes tasks in the next segment. */
  mpg_queue_segment *next;
  _Alignas(64) char data[SEGMENT_SIZE];
};

void mpg_condition_init(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
}

#define NEVER UINT64_MAX

void mpg_sleepers_init(mpg_sleepers *sleepers) {
  atomic_store(&sleepers->wake_at, NEVER);
  mpg_condition_init(&sleepers->reached);
}

bool mpg_sleepers_wait(mpg_sleepers *sleepers, mpg_queue *queue, const _Atomic(mpg_tick) *count,
                       mpg_tick tick, int64_t timeout_ns, bool stops) {
  if (atomic_load_explicit(count, memory_order_acquire) >= tick) return true;
  int64_t end = mpg_clock_ns() + timeout_ns;
  struct timespec until = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
  bool reached, late = false;
  pthread_mutex_lock(&queue->mutex);
  for (;;) {
    if (tick < atomic_load(&sleepers->wake_at)) atomic_store(&sleepers->wake_at, tick);
    reached = atomic_load(count) >= tick;
    if (reached || late || (stops && mpg_queue_stopping(queue))) break;
    late = pthread_cond_timedwait(&sleepers->reached, &queue->mutex, &until) == ETIMEDOUT;
  }
  pthread_mutex_unlock(&queue->mutex);
  return reached;
}

void mpg_sleepers_wake(mpg_sleepers *sleepers, mpg_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  /* After waking, a thread whose tick is not reached stores its tick in wake_at again. */
  atomic_store(&sleepers->wake_at, NEVER);
  /* Unlocks before the broadcast, because the woken threads take the mutex. */
  pthread_mutex_unlock(&queue->mutex);
  pthread_cond_broadcast(&sleepers->reached);
}

void mpg_queue_init(mpg_queue *queue) {
  pthread_mutex_init(&queue->mutex, NULL);
  mpg_condition_init(&queue->work_arrived);
  queue->spin_ns = SPIN_MIN_NS;
}

void mpg_queue_forget_worker(mpg_queue *queue) {
  pthread_mutex_init(&queue->mutex, NULL);
  mpg_condition_init(&queue->work_arrived);
  queue->started = false;
  atomic_store(&queue->sleeping, AWAKE);
}

/* --- Sleeping --------------------------------------------------------------------------------- */

static bool nothing_to_do(mpg_queue *queue) {
  return atomic_load(&queue->published) == queue->consumed && !atomic_load(&queue->stopping);
}

/* A futex wakes a thread 5 us sooner than a condition variable, because the woken thread need not
 * take a mutex. */
#ifdef __linux__
static void sleep_until_work(mpg_queue *queue) {
  while (nothing_to_do(queue)) {
    atomic_store(&queue->sleeping, ASLEEP); /* before the last check, so that no wake-up is lost */
    if (nothing_to_do(queue))
      syscall(SYS_futex, &queue->sleeping, FUTEX_WAIT_PRIVATE, ASLEEP, NULL, NULL, 0);
  }
  atomic_store(&queue->sleeping, AWAKE);
}

void mpg_queue_wake(mpg_queue *queue) {
  if (atomic_load(&queue->sleeping) == ASLEEP && atomic_exchange(&queue->sleeping, AWAKE) == ASLEEP)
    syscall(SYS_futex, &queue->sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else
static void sleep_until_work(mpg_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  atomic_store(&queue->sleeping, ASLEEP);
  while (nothing_to_do(queue)) pthread_cond_wait(&queue->work_arrived, &queue->mutex);
  atomic_store(&queue->sleeping, AWAKE);
  pthread_mutex_unlock(&queue->mutex);
}

void mpg_queue_wake(mpg_queue *queue) {
  if (atomic_load(&queue->sleeping) != ASLEEP) return;
  /* Taking the mutex ensures that the worker either already waits or has yet to check for work, so
   * the signal is not lost. */
  pthread_mutex_lock(&queue->mutex);
  pthread_mutex_unlock(&queue->mutex);
  pthread_cond_signal(&queue->work_arrived);
}
#endif

/* --- The producer ----------------------------------------------------------------------------- */

static size_t record_points_offset(void) {
  return mpg_align_up(sizeof(mpg_record), RECORD_ALIGNMENT);
}

static void release_segment(mpg_queue *queue, mpg_queue_segment *used) {
  mpg_free(atomic_exchange_explicit(&queue->spare, used, memory_order_acq_rel));
}

/* Returns memory for the points and payload of a large task, or NULL if out of memory. The size is
 * stored two words before the returned address. */
static void *take_apart(mpg_queue *queue, size_t size) {
  size_t *memory = atomic_exchange_explicit(&queue->spare_apart, NULL, memory_order_acq_rel);
  if (memory && memory[-2] >= size) return memory;
  if (memory) mpg_free(memory - 2);
  /* The prefix is two words, so that the memory keeps the allocator's alignment of 16 bytes. */
  memory = size < SIZE_MAX / 2 ? mpg_malloc(size + 2 * sizeof *memory) : NULL;
  if (!memory) return NULL;
  memory[0] = size;
  return memory + 2;
}

static void release_apart(mpg_queue *queue, void *apart) {
  if (!apart) return;
  if (((size_t *)apart)[-2] <= LARGEST_KEPT)
    apart = atomic_exchange_explicit(&queue->spare_apart, apart, memory_order_acq_rel);
  if (apart) mpg_free((size_t *)apart - 2);
}

/* Returns space for `size` bytes at the write position, or NULL if out of memory. */
static char *make_room(mpg_queue *queue, size_t size) {
  if (queue->write_segment && queue->write_offset + size <= SEGMENT_SIZE)
    return queue->write_segment->data + queue->write_offset;
  mpg_queue_segment *fresh = atomic_exchange_explicit(&queue->spare, NULL, memory_order_acq_rel);
  if (!fresh) fresh = mpg_aligned_malloc(_Alignof(mpg_queue_segment), sizeof *fresh);
  if (!fresh) return NULL;
  fresh->next = NULL;
  if (queue->write_segment) {
    if (queue->write_offset + sizeof(mpg_record) <= SEGMENT_SIZE)
      ((mpg_record *)(queue->write_segment->data + queue->write_offset))->size = 0;
    queue->write_segment->next = fresh;
  } else { /* the first segment: nothing has been published, so the worker does not read yet */
    queue->read_segment = queue->published_segment = fresh;
  }
  queue->write_segment = fresh;
  queue->write_offset = 0;
  return fresh->data;
}

static mpg_status start_worker(mpg_queue *queue, mpg_device *device, void *(*worker)(void *)) {
  /* The worker inherits a mask that blocks all signals, so that the host's threads handle them.
   * Crash signals stay unblocked, so that a crash is reported in the thread where it happens. */
  sigset_t all, before;
  static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
  sigfillset(&all);
  for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) sigdelset(&all, crashes[i]);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&queue->thread, NULL, worker, device);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    return mpg_fail(MPG_ERROR, "%s: the worker thread could not be started: %s",
                    mpg_device_text(device), strerror(error));
  queue->started = true;
  return MPG_OK;
}

mpg_status mpg_queue_enqueue(mpg_queue *queue, mpg_device *device, void *(*worker)(void *),
                             const mpg_submission *submission, mpg_tick first_tick) {
  if (!queue->started) MPG_TRY(start_worker(queue, device, worker));
  size_t points_size =
      mpg_align_up((size_t)submission->num_points * sizeof(mpg_point), RECORD_ALIGNMENT);
  size_t content, size;
  if (!mpg_size_add(points_size, submission->payload_size, &content) || content > SIZE_MAX / 2)
    return mpg_out_of_host_memory(SIZE_MAX);
  size = record_points_offset() + mpg_align_up(content, RECORD_ALIGNMENT);
  char *apart = NULL;
  if (size > LARGEST_RECORD) {
    apart = take_apart(queue, content);
    if (!apart) return mpg_out_of_host_memory(content);
    size = record_points_offset();
  }
  mpg_record *made = (mpg_record *)make_room(queue, size);
  if (!made) {
    release_apart(queue, apart);
    return mpg_out_of_host_memory(sizeof(mpg_queue_segment));
  }
  char *points = apart ? apart : (char *)made + record_points_offset();
  made->size = size;
  made->apart = apart;
  made->task = (mpg_task){.submission = *submission, .first_tick = first_tick};
  made->task.submission.points = (mpg_point *)points;
  made->task.submission.payload = points + points_size;
  if (submission->num_points)
    memcpy(points, submission->points, (size_t)submission->num_points * sizeof(mpg_point));
  if (submission->payload_size)
    memcpy(points + points_size, submission->payload, submission->payload_size);
  queue->write_offset += size;
  queue->enqueued++;
  return MPG_OK;
}

void mpg_queue_publish(mpg_queue *queue) {
  queue->published_segment = queue->write_segment;
  queue->published_offset = queue->write_offset;
  atomic_store_explicit(&queue->producer_core, mpg_this_core(), memory_order_relaxed);
  /* Sequentially consistent, like the stores to `sleeping`, so that a worker about to sleep sees
   * the new tasks. */
  atomic_store(&queue->published, queue->enqueued);
}

void mpg_queue_retract(mpg_queue *queue) {
  uint64_t published = atomic_load(&queue->published);
  mpg_queue_segment *at = queue->published_segment;
  size_t offset = queue->published_offset;
  for (uint64_t left = queue->enqueued - published; left;) {
    mpg_record *forgotten = (mpg_record *)(at->data + offset);
    if (offset + sizeof *forgotten > SEGMENT_SIZE || !forgotten->size) {
      at = at->next;
      offset = 0;
      continue;
    }
    release_apart(queue, forgotten->apart);
    offset += forgotten->size;
    left--;
  }
  if (queue->published_segment) {
    for (mpg_queue_segment *extra = queue->published_segment->next; extra;) {
      mpg_queue_segment *next = extra->next;
      release_segment(queue, extra);
      extra = next;
    }
    queue->published_segment->next = NULL;
  }
  queue->write_segment = queue->published_segment;
  queue->write_offset = queue->published_offset;
  queue->enqueued = published;
}

void mpg_queue_stop(mpg_queue *queue) {
  atomic_store(&queue->stopping, true);
  mpg_queue_wake(queue);
}

void mpg_queue_join(mpg_queue *queue) {
  if (queue->started && !pthread_equal(queue->thread, pthread_self()))
    pthread_join(queue->thread, NULL);
  queue->started = false;
}

/* --- The consumer ----------------------------------------------------------------------------- */

mpg_record *mpg_queue_front(mpg_queue *queue) {
  for (;;) {
    mpg_record *next = (mpg_record *)(queue->read_segment->data + queue->read_offset);
    if (queue->read_offset + sizeof *next <= SEGMENT_SIZE && next->size) return next;
    mpg_queue_segment *used = queue->read_segment;
    queue->read_segment = used->next;
    queue->read_offset = 0;
    release_segment(queue, used);
  }
}

void mpg_queue_pop(mpg_queue *queue, mpg_record *done) {
  release_apart(queue, done->apart);
  queue->read_offset += done->size;
  queue->consumed++;
}

static bool shares_core(mpg_queue *queue) {
  int core = atomic_load_explicit(&queue->producer_core, memory_order_relaxed);
  return core && core == mpg_this_core();
}

/* Spins for queue->spin_ns while the queue is empty, unless the worker shares a core with the
 * thread that submits work. */
static void spin(mpg_queue *queue, int64_t begin) {
  if (mpg_idle_spin_begin()) do
      for (int i = 0; i < 32 && mpg_queue_empty(queue); i++) mpg_cpu_pause();
    while (mpg_queue_empty(queue) && !shares_core(queue) &&
           mpg_clock_ns() - begin < queue->spin_ns && !mpg_queue_stopping(queue));
  mpg_idle_spin_end();
}

mpg_record *mpg_queue_next(mpg_queue *queue) {
  int64_t limit = mpg_idle_spin_ns();
  if (mpg_queue_empty(queue) && limit) {
    int64_t begin = mpg_clock_ns();
    spin(queue, begin);
    if (mpg_queue_empty(queue)) sleep_until_work(queue);
    /* If work arrived within twice the limit (including the time to wake up), the next spin may
     * last up to the limit. Otherwise halves the next spin. */
    queue->spin_ns = mpg_clock_ns() - begin < 2 * limit ? limit : queue->spin_ns / 2;
    if (queue->spin_ns < SPIN_MIN_NS) queue->spin_ns = SPIN_MIN_NS;
  } else if (mpg_queue_empty(queue)) {
    sleep_until_work(queue);
  }
  return atomic_load(&queue->stopping) ? NULL : mpg_queue_front(queue);
}

bool mpg_queue_wait(mpg_queue *queue, mpg_device *device, mpg_point point) {
  if (mpg_tick_reached(point.device, point.tick)) return true;
  int64_t begin = mpg_clock_ns();
  bool reached =
      !point.device->remote && mpg_tick_spin(point.device, point.tick, mpg_spin_limit_ns());
  if (!reached) {
    atomic_store_explicit(&device->at.tick, point.tick, memory_order_relaxed);
    atomic_store_explicit(&device->at.peer, point.device->ordinal + 1, memory_order_relaxed);
    while (!reached && !mpg_queue_stopping(queue))
      reached = point.device->backend->wait(point.device, point.tick, WAIT_SLICE_NS);
    atomic_store_explicit(&device->at.peer, 0, memory_order_relaxed);
  }
  if (reached && mpg_profiler_on())
    mpg_profiler_record(device, &(mpg_event){.name = "wait",
                                             .kind = MPG_EVENT_WAIT,
                                             .peer = point.device->ordinal,
                                             .begin_ns = begin,
                                             .end_ns = mpg_clock_ns()});
  return reached;
}
