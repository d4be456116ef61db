/* The queue of a device's worker: one producer (the holder of the host lock), one consumer (the
 * worker, or the host once there is no worker). It is a chain of segments that holds tasks of any
 * size one after the other. `published` counts tasks; the worker reads nothing beyond it. No lock
 * is taken unless a thread sleeps.
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
  size_t size; /* of record, points and payload here; 0: go on in the next segment */
  void *apart; /* points and payload, when too large for a segment; owned */
  mpg_task task;
} mpg_record;

typedef struct mpg_queue {
  /* The producer's, under the host lock. */
  mpg_queue_segment *write_segment;
  size_t write_offset;
  uint64_t enqueued;
  mpg_queue_segment *published_segment; /* the place to return to when enqueued work is retracted */
  size_t published_offset;
  bool started; /* there is a worker */

  /* Shared; fields written with every task are apart from fields that are mostly read. */
  _Alignas(64) _Atomic(uint64_t) published;
  _Atomic(int) producer_core;              /* mpg_this_core, when that was */
  _Alignas(64) _Atomic(uint32_t) sleeping; /* the worker sleeps, or is about to */
  _Atomic(bool) stopping;
  _Atomic(mpg_queue_segment *) spare; /* a used segment, on its way back to the producer */
  _Atomic(void *) spare_apart;        /* likewise memory of a large task */
  pthread_mutex_t mutex;              /* the backend may use it for waiters of its own */
  pthread_cond_t work_arrived;        /* where there is no futex */

  /* The worker's; the producer's when there is none. */
  _Alignas(64) mpg_queue_segment *read_segment;
  size_t read_offset;
  uint64_t consumed;
  int64_t spin_ns; /* how long an idle worker looks for work before it sleeps */
  pthread_t thread;
} mpg_queue;

/* Threads that sleep until a count of ticks has come somewhere. */
typedef struct mpg_sleepers {
  _Alignas(64) _Atomic(mpg_tick) wake_at; /* the lowest tick that one of them wants */
  pthread_cond_t reached;                 /* with the queue's mutex */
} mpg_sleepers;

void mpg_queue_init(mpg_queue *queue);              /* zeroed before */
void mpg_condition_init(pthread_cond_t *condition); /* of the monotonic clock */
void mpg_sleepers_init(mpg_sleepers *sleepers);
/* Sleeps until *count is `tick` or more, the time has passed, or, if `stops`, the queue's worker
 * has been asked to stop. True when it is. */
bool mpg_sleepers_wait(mpg_sleepers *sleepers, mpg_queue *queue, const _Atomic(mpg_tick) *count,
                       mpg_tick tick, int64_t timeout_ns, bool stops);
/* The count, stored before with sequential consistency, has come to `tick`. */
void mpg_sleepers_wake(mpg_sleepers *sleepers, mpg_queue *queue);
static inline void mpg_sleepers_passed(mpg_sleepers *sleepers, mpg_queue *queue, mpg_tick tick) {
  if (tick >= atomic_load(&sleepers->wake_at)) mpg_sleepers_wake(sleepers, queue);
}

/* The producer's side: the slots of mpg_backend. Starts the worker with the first task. */
mpg_status mpg_queue_enqueue(mpg_queue *queue, mpg_device *device, void *(*worker)(void *device),
                             const mpg_submission *submission, mpg_tick first_tick);
void mpg_queue_publish(mpg_queue *queue);
void mpg_queue_wake(mpg_queue *queue); /* the worker, if it sleeps */
void mpg_queue_retract(mpg_queue *queue);
void mpg_queue_stop(mpg_queue *queue);
void mpg_queue_join(mpg_queue *queue);          /* after which this thread may read */
void mpg_queue_forget_worker(mpg_queue *queue); /* in a forked child */

/* The consumer's. */
static inline bool mpg_queue_empty(mpg_queue *queue) {
  return atomic_load_explicit(&queue->published, memory_order_acquire) == queue->consumed;
}
static inline bool mpg_queue_stopping(mpg_queue *queue) {
  return atomic_load_explicit(&queue->stopping, memory_order_relaxed);
}
mpg_record *mpg_queue_next(mpg_queue *queue); /* waits for a task; NULL when asked to stop */
mpg_record *mpg_queue_front(
    mpg_queue *queue); /* the next task; the caller knows that there is one */
void mpg_queue_pop(mpg_queue *queue, mpg_record *done);
/* Blocks the worker of `device` until another device has reached the point. False: asked to stop.
 */
bool mpg_queue_wait(mpg_queue *queue, mpg_device *device, mpg_point point);

#endif
