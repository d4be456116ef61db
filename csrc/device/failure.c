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
  const mpg_device *device; /* where it happened */
  _Atomic bool reported;
  char text[];
};

typedef struct failed_range {
  mpg_tick first, last;
  const mpg_cause *cause;
} failed_range;

/* Sorted by tick: work of a device ends in the order of its ticks. */
struct mpg_failures {
  pthread_mutex_t lock;
  failed_range *ranges;
  size_t count, capacity;
  size_t looked_at; /* ranges that wait_all has already looked through */
  _Atomic mpg_tick last_failed;
};

enum { RESERVED_RANGES = 8 };

/* Stands in when there is no memory to say more. */
static mpg_cause no_memory_cause = {.status = MPG_HOST_OUT_OF_MEMORY,
                                    .text = "work failed, and there was no memory left to keep what its error said"};

/* What mpg_device_failure gave last to this thread, which runs work: when that work passes it on, the cause stays the same. */
static _Thread_local const mpg_cause *passed_on;

void mpg_failures_forget_passed_on(void) { passed_on = NULL; }

mpg_status mpg_failures_open(mpg_device *device) {
  struct mpg_failures *failures = mpg_calloc(1, sizeof *failures);
  if (!failures) return mpg_out_of_host_memory(sizeof *failures);
  if (mpg_grow((void **)&failures->ranges, &failures->capacity, RESERVED_RANGES, sizeof *failures->ranges) != MPG_OK) {
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

const mpg_cause *mpg_failures_find(mpg_device *device, mpg_tick tick) {
  if (!atomic_load_explicit(&device->failed, memory_order_acquire)) return NULL;
  struct mpg_failures *failures = device->failures;
  if (tick == 0 || tick > atomic_load_explicit(&failures->last_failed, memory_order_acquire)) return NULL;
  const mpg_cause *cause = NULL;
  pthread_mutex_lock(&failures->lock);
  size_t low = 0, high = failures->count; /* the first range whose last tick is not before `tick` */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (failures->ranges[middle].last < tick)
      low = middle + 1;
    else
      high = middle;
  }
  if (low < failures->count && failures->ranges[low].first <= tick) cause = failures->ranges[low].cause;
  pthread_mutex_unlock(&failures->lock);
  return cause;
}

void mpg_failures_add(mpg_device *device, mpg_tick first, mpg_tick last, const mpg_cause *cause) {
  struct mpg_failures *failures = device->failures;
  pthread_mutex_lock(&failures->lock);
  failed_range *previous = failures->count ? &failures->ranges[failures->count - 1] : NULL;
  if (previous && previous->cause == cause && previous->last + 1 == first) {
    previous->last = last;
    if (failures->looked_at == failures->count) failures->looked_at--; /* a cause that came back is news again */
  } else if (mpg_grow((void **)&failures->ranges, &failures->capacity, failures->count + 1, sizeof *failures->ranges) == MPG_OK) {
    failures->ranges[failures->count++] = (failed_range){first, last, cause};
  } else {
    /* No memory: a failure must not get lost, so the latest range is widened over what lies between. */
    previous->last = last;
    previous->cause = &no_memory_cause;
    if (failures->looked_at == failures->count) failures->looked_at--;
  }
  atomic_store_explicit(&failures->last_failed, last, memory_order_release);
  atomic_store_explicit(&device->failed, true, memory_order_release);
  pthread_mutex_unlock(&failures->lock);
}

void mpg_device_fail(mpg_device *device, mpg_tick first, mpg_tick last, mpg_status status, const mpg_submission *submission) {
  const char *text = mpg_error_text();
  const mpg_cause *known = passed_on;
  if (known && known->status == status && strcmp(known->text, text) == 0) {
    mpg_failures_add(device, first, last, known);
    return;
  }
  size_t size = strlen(text) + 1;
  mpg_cause *cause = mpg_malloc(sizeof *cause + size);
  if (cause) {
    *cause = (mpg_cause){.status = status,
                         .origin = submission ? submission->origin : 0,
                         .scope = submission ? submission->scope : 0,
                         .stage = submission ? submission->stage : 0,
                         .micro_batch = submission ? submission->micro_batch : 0,
                         .steps = submission ? submission->steps : 0,
                         .name = submission ? submission->name : NULL,
                         .device = device};
    memcpy(cause->text, text, size);
  } else {
    cause = &no_memory_cause;
    atomic_store(&cause->reported, false);
  }
  mpg_failures_add(device, first, last, cause);
}

mpg_status mpg_failures_report(const mpg_cause *cause) {
  atomic_store(&((mpg_cause *)cause)->reported, true);
  if (mpg_worker_device()) { /* no host lock, so the host's line cannot be asked for; whoever reports it will */
    passed_on = cause;
    return mpg_fail(cause->status, "%s", cause->text);
  }
  char origin[512] = "";
  if (cause->origin) {
    char line[480] = "";
    mpg_host_get()->origin_text(cause->origin, line, sizeof line);
    if (line[0]) snprintf(origin, sizeof origin, ", queued at %s", line);
  }
  char part[96] = "";
  if (cause->stage) snprintf(part, sizeof part, ", stage %u, micro-batch %u", cause->stage - 1, cause->micro_batch - 1);
  uint32_t step = (uint32_t)cause->steps, outer = (uint32_t)(cause->steps >> 32);
  size_t used = strlen(part);
  if (step) snprintf(part + used, sizeof part - used, outer ? ", step %u of a loop in step %u of another" : ", step %u of a loop", step - 1, outer - 1);
  if (!cause->device || (!origin[0] && !cause->scope && !cause->name)) return mpg_fail(cause->status, "%s", cause->text);
  return mpg_fail(cause->status, "%s [%s on %s%s%s%s%s]", cause->text, cause->name ? cause->name : "work", cause->device->text, part, origin,
                  cause->scope ? ", in block " : "", mpg_scope_text(cause->scope));
}

mpg_status mpg_device_failure(mpg_device *device, mpg_tick tick) {
  const mpg_cause *cause = mpg_failures_find(device, tick);
  return cause ? mpg_failures_report(cause) : MPG_OK;
}

const mpg_cause *mpg_failures_unreported(mpg_device *device) {
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
