/* Failure records: the failed ticks of a device, with their causes. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/internal.h"

struct mpg_cause {
  mpg_status status;
  uint32_t origin, scope, stage, micro_batch;
  uint64_t steps;
  const char *name;
  const mpg_device *device; /* the device whose work failed first */
  _Atomic bool reported;
  char text[];
};

typedef struct failed_range {
  mpg_tick first, last;
  const mpg_cause *cause;
} failed_range;

/* Sorted array of failed tick ranges. Most ranges are appended, because work usually fails in tick
 * order. If a GPU reports the failure of earlier work late, the new range is inserted. */
struct mpg_failures {
  pthread_mutex_t lock;
  failed_range *ranges;
  size_t count, capacity;
  size_t looked_at; /* mpg_failures_unreported has visited ranges[0..looked_at-1] */
  _Atomic mpg_tick last_failed;
};

enum { RESERVED_RANGES = 8 };

/* Used as the cause if there is no memory for a new one. */
static mpg_cause no_memory_cause = {
    .status = MPG_HOST_OUT_OF_MEMORY,
    .text = "work failed, and there was not enough memory to store its error message"};

/* The latest failure that mpg_device_failure returned to this worker thread. If the running work
 * then fails with the same text, it has propagated this failure, and its ticks get the same
 * cause. */
static _Thread_local const mpg_cause *passed_on;

void mpg_failures_forget_passed_on(void) { passed_on = NULL; }

mpg_status mpg_failures_open(mpg_device *device) {
  struct mpg_failures *failures = mpg_calloc(1, sizeof *failures);
  if (!failures) return mpg_out_of_host_memory(sizeof *failures);
  if (mpg_grow((void **)&failures->ranges, &failures->capacity, RESERVED_RANGES,
               sizeof *failures->ranges) != MPG_OK) {
    mpg_free(failures);
    return MPG_HOST_OUT_OF_MEMORY;
  }
  pthread_mutex_init(&failures->lock, NULL);
  device->failures = failures;
  return MPG_OK;
}

void mpg_failures_close(mpg_device *device) {
  if (!device->failures) return;
  pthread_mutex_destroy(&device->failures->lock);
  mpg_free(device->failures->ranges);
  mpg_free(device->failures);
  device->failures = NULL;
}

/* Returns the index of the first range that ends at or after `tick`. The lock is held. */
static size_t range_at(const struct mpg_failures *failures, mpg_tick tick) {
  size_t low = 0, high = failures->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (failures->ranges[middle].last < tick)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Records the failures that the hardware has reported since the last call. */
static void hear_reports(mpg_device *device) {
  if (device->raised && atomic_load_explicit(device->raised, memory_order_acquire))
    device->backend->collect(device);
}

const mpg_cause *mpg_failures_find(mpg_device *device, mpg_tick tick) {
  hear_reports(device);
  if (!atomic_load_explicit(&device->failed, memory_order_acquire)) return NULL;
  struct mpg_failures *failures = device->failures;
  if (tick == 0 || tick > atomic_load_explicit(&failures->last_failed, memory_order_acquire))
    return NULL;
  const mpg_cause *cause = NULL;
  pthread_mutex_lock(&failures->lock);
  size_t at = range_at(failures, tick);
  if (at < failures->count && failures->ranges[at].first <= tick)
    cause = failures->ranges[at].cause;
  pthread_mutex_unlock(&failures->lock);
  return cause;
}

/* Reserves space for several ranges. Returns true if at least one more range fits, which may be the
 * case even if the allocation failed. */
static bool make_room(struct mpg_failures *failures) {
  mpg_status grown = mpg_grow((void **)&failures->ranges, &failures->capacity,
                              failures->count + RESERVED_RANGES, sizeof *failures->ranges);
  return grown == MPG_OK || failures->count < failures->capacity;
}

/* Adds the range first..last, which must not overlap an existing range. The lock is held. */
static void add_range(struct mpg_failures *failures, mpg_tick first, mpg_tick last,
                      const mpg_cause *cause) {
  size_t at = range_at(failures, first), news = at;
  failed_range *previous = at > 0 ? &failures->ranges[at - 1] : NULL;
  if (previous && previous->cause == cause && previous->last + 1 == first) {
    previous->last = last;
    news = at - 1; /* lets mpg_failures_unreported revisit the range */
  } else if (make_room(failures)) {
    memmove(failures->ranges + at + 1, failures->ranges + at,
            (failures->count - at) * sizeof *failures->ranges);
    failures->ranges[at] = (failed_range){first, last, cause};
    failures->count++;
  } else {
    /* Out of memory. A failure must not be lost, so a neighboring range is widened to include the
     * new one. */
    news = at > 0 ? at - 1 : 0;
    failed_range *widened = &failures->ranges[news];
    if (widened->last < last) widened->last = last;
    if (widened->first > first) widened->first = first;
    widened->cause = &no_memory_cause;
  }
  if (failures->looked_at > news) failures->looked_at = news;
}

void mpg_failures_add(mpg_device *device, mpg_tick first, mpg_tick last, const mpg_cause *cause) {
  struct mpg_failures *failures = device->failures;
  pthread_mutex_lock(&failures->lock);
  for (mpg_tick tick = first; tick <= last;) { /* ticks that have already failed keep their cause */
    size_t at = range_at(failures, tick);
    const failed_range *next = at < failures->count ? &failures->ranges[at] : NULL;
    mpg_tick end = last;
    if (next && next->first <= tick) {
      end = next->last;
    } else {
      if (next && next->first <= last) end = next->first - 1;
      add_range(failures, tick, end, cause);
    }
    tick = end + 1;
  }
  if (last > atomic_load_explicit(&failures->last_failed, memory_order_relaxed))
    atomic_store_explicit(&failures->last_failed, last, memory_order_release);
  atomic_store_explicit(&device->failed, true, memory_order_release);
  pthread_mutex_unlock(&failures->lock);
}

const mpg_cause *mpg_cause_new(mpg_device *device, mpg_status status, const char *text,
                               const mpg_submission *submission) {
  size_t size = strlen(text) + 1;
  mpg_cause *cause = mpg_malloc(sizeof *cause + size);
  if (!cause) {
    atomic_store(&no_memory_cause.reported, false);
    return &no_memory_cause;
  }
  *cause = (mpg_cause){.status = status,
                       .origin = submission ? submission->origin : 0,
                       .scope = submission ? submission->scope : 0,
                       .stage = submission ? submission->stage : 0,
                       .micro_batch = submission ? submission->micro_batch : 0,
                       .steps = submission ? submission->steps : 0,
                       .name = submission ? submission->name : NULL,
                       .device = device};
  memcpy(cause->text, text, size);
  return cause;
}

void mpg_device_fail(mpg_device *device, mpg_tick first, mpg_tick last, mpg_status status,
                     const mpg_submission *submission) {
  const char *text = mpg_error_text();
  const mpg_cause *known = passed_on;
  bool same = known && known->status == status && strcmp(known->text, text) == 0;
  mpg_failures_add(device, first, last,
                   same ? known : mpg_cause_new(device, status, text, submission));
}

const char *mpg_failures_text(const mpg_cause *cause) { return cause->text; }

mpg_status mpg_failures_report(const mpg_cause *cause) {
  /* On a worker, the error text omits the origin, because the host adds it when it reports the
   * failure. */
  if (mpg_worker_device()) {
    passed_on = cause;
    return mpg_fail(cause->status, "%s", cause->text);
  }
  atomic_store(&((mpg_cause *)cause)->reported, true);
  char origin[512] = "";
  if (cause->origin) {
    char line[480] = "";
    mpg_host_origin_text(cause->origin, line, sizeof line);
    if (line[0]) snprintf(origin, sizeof origin, ", queued at %s", line);
  }
  char part[96] = "";
  if (cause->stage)
    snprintf(part, sizeof part, ", stage %u, micro-batch %u", cause->stage - 1,
             cause->micro_batch - 1);
  uint32_t step = (uint32_t)cause->steps, outer = (uint32_t)(cause->steps >> 32);
  size_t used = strlen(part);
  if (step)
    snprintf(part + used, sizeof part - used,
             outer ? ", step %u of a loop in step %u of another" : ", step %u of a loop", step - 1,
             outer - 1);
  if (!cause->device || (!origin[0] && !cause->scope && !cause->name))
    return mpg_fail(cause->status, "%s", cause->text);
  return mpg_fail(cause->status, "%s [%s on %s%s%s%s%s]", cause->text,
                  cause->name ? cause->name : "work", mpg_device_text(cause->device), part, origin,
                  cause->scope ? ", in block " : "", mpg_scope_text(cause->scope));
}

mpg_status mpg_device_failure(mpg_device *device, mpg_tick tick) {
  const mpg_cause *cause = mpg_failures_find(device, tick);
  return cause ? mpg_failures_report(cause) : MPG_OK;
}

const mpg_cause *mpg_failures_unreported(mpg_device *device) {
  hear_reports(device);
  if (!atomic_load_explicit(&device->failed, memory_order_acquire)) return NULL;
  struct mpg_failures *failures = device->failures;
  const mpg_cause *first = NULL;
  pthread_mutex_lock(&failures->lock);
  for (; failures->looked_at < failures->count; failures->looked_at++) {
    mpg_cause *cause = (mpg_cause *)failures->ranges[failures->looked_at].cause;
    if (!atomic_exchange(&cause->reported, true) && !first) first = cause;
  }
  pthread_mutex_unlock(&failures->lock);
  return first;
}

void mpg_failures_fork_prepare(mpg_device *device) { pthread_mutex_lock(&device->failures->lock); }

void mpg_failures_fork_done(mpg_device *device, bool child) {
  if (child)
    pthread_mutex_init(&device->failures->lock, NULL);
  else
    pthread_mutex_unlock(&device->failures->lock);
}
