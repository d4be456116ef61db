/* Single-producer, single-consumer queue of a device's worker. The producer is the holder of the
 * host lock. The consumer is the worker, or the host before the worker has started and after it has
 * ended. The queue is a chain of segments that hold tasks of variable size back to back.
 * `published` counts tasks, and the worker reads nothing beyond it. No lock is taken unless a
 * thread sleeps.
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
  /* Size of the record with points and payload in this segment; 0 means that the next record is in
   * the next segment. */
  size_t size;
  /* Points and payload if too large for a segment; owned. */
  void *apart;
  mpg_task task;
} mpg_record;

typedef struct mpg_queue {
  /* Producer state, under the host lock. */
  mpg_queue_segment *write_segment;
  size_t write_offset;
  uint64_t enqueued;
  mpg_queue_segment *published_segment; /* position to return to when enqueued work is retracted */
  size_t published_offset;
  bool started; /* the worker exists */

  /* Shared state. Fields written with every task are on other cache lines than fields that are
   * mostly read. */
  _Alignas(64) _Atomic(uint64_t) published;
  _Atomic(int) producer_core;              /* mpg_this_core at the last publish */
  _Alignas(64) _Atomic(uint32_t) sleeping; /* the worker sleeps or is about to */
  _Atomic(bool) stopping;
  _Atomic(mpg_queue_segment *) spare; /* a used segment, for reuse by the producer */
  _Atomic(void *) spare_apart;        /* memory of a large task, for reuse by the producer */
  pthread_mutex_t mutex;              /* the backend may use it for its own waiters */
  pthread_cond_t work_arrived;        /* for systems without futexes */

  /* Consumer state; belongs to the producer while no worker exists. */
  _Alignas(64) mpg_queue_segment *read_segment;
  size_t read_offset;
  uint64_t consumed;
  int64_t spin_ns; /* how long an idle worker polls before it sleeps */
  pthread_t thread;
} mpg_queue;

/* Threads that sleep until a tick count reaches their ticks. */
typedef struct mpg_sleepers {
  _Alignas(64) _Atomic(mpg_tick) wake_at; /* the lowest tick that a sleeper waits for */
  pthread_cond_t reached;                 /* used with the queue's mutex */
} mpg_sleepers;

void mpg_queue_init(mpg_queue *queue);              /* the memory must be zeroed */
void mpg_condition_init(pthread_cond_t *condition); /* uses the monotonic clock */
void mpg_sleepers_init(mpg_sleepers *sleepers);
/* Sleeps until *count >= tick or the timeout has passed. If `stops`, also returns when the queue's
 * worker has been asked to stop. Returns true if the tick is reached. */
bool mpg_sleepers_wait(mpg_sleepers *sleepers, mpg_queue *queue, const _Atomic(mpg_tick) *count,
                       mpg_tick tick, int64_t timeout_ns, bool stops);
/* Wakes the sleepers. The caller has stored the new count with sequential consistency. */
void mpg_sleepers_wake(mpg_sleepers *sleepers, mpg_queue *queue);
static inline void mpg_sleepers_passed(mpg_sleepers *sleepers, mpg_queue *queue, mpg_tick tick) {
  if (tick >= atomic_load(&sleepers->wake_at)) mpg_sleepers_wake(sleepers, queue);
}

/* Producer side: the slots of mpg_backend. The first task starts the worker. */
mpg_status mpg_queue_enqueue(mpg_queue *queue, mpg_device *device, void *(*worker)(void *device),
                             const mpg_submission *submission, mpg_tick first_tick);
void mpg_queue_publish(mpg_queue *queue);
void mpg_queue_wake(mpg_queue *queue); /* wakes the worker if it sleeps */
void mpg_queue_retract(mpg_queue *queue);
void mpg_queue_stop(mpg_queue *queue);
void mpg_queue_join(mpg_queue *queue);          /* afterward the calling thread is the consumer */
void mpg_queue_forget_worker(mpg_queue *queue); /* in a forked child */

/* Consumer side. */
static inline bool mpg_queue_empty(mpg_queue *queue) {
  return atomic_load_explicit(&queue->published, memory_order_acquire) == queue->consumed;
}
static inline bool mpg_queue_stopping(mpg_queue *queue) {
  return atomic_load_explicit(&queue->stopping, memory_order_relaxed);
}
mpg_record *mpg_queue_next(mpg_queue *queue); /* waits for a task; NULL if asked to stop */
/* Returns the next task of a queue that is not empty. */
mpg_record *mpg_queue_front(mpg_queue *queue);
void mpg_queue_pop(mpg_queue *queue, mpg_record *done);
/* Blocks the worker of `device` until another device reaches the point. Returns false if asked to
 * stop. */
bool mpg_queue_wait(mpg_queue *queue, mpg_device *device, mpg_point point);

#endif
