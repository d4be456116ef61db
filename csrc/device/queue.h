/* Single-producer, single-consumer queue of tasks for a device's worker. The producer is the holder
 * of the host lock. The consumer is the worker, or the host before the worker has started and after
 * it has ended. The queue is a linked list of segments that hold tasks of variable size back to
 * back. The worker reads only the first `published` tasks. No lock is taken unless a thread sleeps.
 *
 * Ownership: a backend embeds the queue in its state; tasks own the copies of payload and points
 * until they are popped.
 */
#ifndef MPG_DEVICE_QUEUE_H
#define MPG_DEVICE_QUEUE_H

#include <pthread.h>

#include "device/internal.h"

typedef struct mpg_queue_segment mpg_queue_segment;

typedef struct mpg_record {
  /* Size of the record in this segment. Includes points and payload unless they are in `apart`. 0
   * marks the end of the segment: the next record is in the next segment. */
  size_t size;
  /* Separate allocation for points and payload that are too large for a segment; NULL if unused.
   * Owned. */
  void *apart;
  mpg_task task;
} mpg_record;

typedef struct mpg_queue {
  /* Producer state, under the host lock. */
  mpg_queue_segment *write_segment;
  size_t write_offset;
  uint64_t enqueued;
  /* Write position at the last publish, to which mpg_queue_retract returns. */
  mpg_queue_segment *published_segment;
  size_t published_offset;
  bool started; /* the worker thread has been started */

  /* Shared state. To avoid false sharing, fields that are written with every task are on separate
   * cache lines. */
  _Alignas(64) _Atomic(uint64_t) published;
  _Atomic(int) producer_core; /* mpg_this_core at the last publish */
  /* ASLEEP if the worker sleeps or is about to (queue.c) */
  _Alignas(64) _Atomic(uint32_t) sleeping;
  _Atomic(bool) stopping;
  _Atomic(mpg_queue_segment *) spare; /* a consumed segment that the producer reuses */
  _Atomic(void *) spare_apart;        /* memory of a finished large task that the producer reuses */
  pthread_mutex_t mutex;              /* backends may use it for their own condition variables */
  pthread_cond_t work_arrived;        /* for systems without futexes */

  /* Consumer state; belongs to the producer while no worker exists. */
  _Alignas(64) mpg_queue_segment *read_segment;
  size_t read_offset;
  uint64_t consumed;
  int64_t spin_ns; /* time that an idle worker spins before it sleeps */
  pthread_t thread;
} mpg_queue;

/* Threads that sleep until a tick counter reaches the tick that they wait for. */
typedef struct mpg_sleepers {
  /* Lowest tick that a sleeper waits for; the maximum value means none. */
  _Alignas(64) _Atomic(mpg_tick) wake_at;
  pthread_cond_t reached; /* used with the queue's mutex */
} mpg_sleepers;

void mpg_queue_init(mpg_queue *queue);              /* the queue's memory must be zeroed */
void mpg_condition_init(pthread_cond_t *condition); /* uses the monotonic clock */
void mpg_sleepers_init(mpg_sleepers *sleepers);
/* Sleeps until *count >= tick or the timeout has passed. If `stops`, also returns when the queue's
 * worker has been asked to stop. Returns true if the tick is reached. */
bool mpg_sleepers_wait(mpg_sleepers *sleepers, mpg_queue *queue, const _Atomic(mpg_tick) *count,
                       mpg_tick tick, int64_t timeout_ns, bool stops);
/* Wakes the sleepers. The caller must have stored the new count with sequential consistency, so
 * that a thread that is about to sleep sees it. */
void mpg_sleepers_wake(mpg_sleepers *sleepers, mpg_queue *queue);
static inline void mpg_sleepers_passed(mpg_sleepers *sleepers, mpg_queue *queue, mpg_tick tick) {
  if (tick >= atomic_load(&sleepers->wake_at)) mpg_sleepers_wake(sleepers, queue);
}

/* Producer side: implements the queue functions of mpg_backend. The first enqueue starts the
 * worker. */
mpg_status mpg_queue_enqueue(mpg_queue *queue, mpg_device *device, void *(*worker)(void *device),
                             const mpg_submission *submission, mpg_tick first_tick);
void mpg_queue_publish(mpg_queue *queue);
void mpg_queue_wake(mpg_queue *queue); /* wakes the worker if it sleeps */
void mpg_queue_retract(mpg_queue *queue);
void mpg_queue_stop(mpg_queue *queue);
/* Waits until the worker has ended. The caller is then the consumer. */
void mpg_queue_join(mpg_queue *queue);
void mpg_queue_forget_worker(mpg_queue *queue); /* resets the state in a forked child */

/* Consumer side. */
static inline bool mpg_queue_empty(mpg_queue *queue) {
  return atomic_load_explicit(&queue->published, memory_order_acquire) == queue->consumed;
}
static inline bool mpg_queue_stopping(mpg_queue *queue) {
  return atomic_load_explicit(&queue->stopping, memory_order_relaxed);
}
/* Waits for a task; returns NULL if the worker was asked to stop. */
mpg_record *mpg_queue_next(mpg_queue *queue);
/* Returns the next task. The queue must not be empty. */
mpg_record *mpg_queue_front(mpg_queue *queue);
void mpg_queue_pop(mpg_queue *queue, mpg_record *done);
/* Blocks the worker of `device` until another device reaches the point. Returns false if the worker
 * has been asked to stop. */
bool mpg_queue_wait(mpg_queue *queue, mpg_device *device, mpg_point point);

#endif
