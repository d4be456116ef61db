/* A log of the work recently issued to a GPU. */
#include "device/gpu/issued.h"

#include <stdio.h>

#include "base/memory.h"

mpg_status mpg_issued_init(mpg_issued *issued) {
  issued->works = mpg_calloc(MPG_ISSUED_KEPT, sizeof *issued->works);
  return issued->works ? MPG_OK : mpg_out_of_host_memory(MPG_ISSUED_KEPT * sizeof *issued->works);
}

void mpg_issued_close(mpg_issued *issued) { mpg_free(issued->works); }

/* Value of `raised` while reports are read. It is not 0, so a thread that tests `raised` during
 * this time takes the mutex and thus waits until the failures are recorded. */
enum { BEING_READ = 2 };

static mpg_issued_work *work_at(const mpg_issued *issued, uint64_t number) {
  return &issued->works[number % MPG_ISSUED_KEPT];
}
static uint64_t oldest(const mpg_issued *issued) {
  return issued->count < MPG_ISSUED_KEPT ? 0 : issued->count - MPG_ISSUED_KEPT;
}
static uint64_t open_checks(mpg_issued *issued) {
  return atomic_load_explicit(&issued->open, memory_order_relaxed);
}

/* Returns the bit set of checks that the work of a tick depends on. */
static uint64_t checks_of(const mpg_issued *issued, mpg_tick tick) {
  uint64_t low = oldest(issued), high = issued->count;
  while (low < high) { /* binary search for the first work with last >= tick */
    uint64_t middle = low + (high - low) / 2;
    if (work_at(issued, middle)->last < tick)
      low = middle + 1;
    else
      high = middle;
  }
  const mpg_issued_work *work = work_at(issued, low);
  return low < issued->count && work->first <= tick ? work->checks : 0;
}

mpg_tick mpg_issued_overflow_tick(mpg_issued *issued) {
  uint64_t open = open_checks(issued);
  if (!open || issued->count < MPG_ISSUED_KEPT) return 0;
  for (uint64_t left = open; left; left &= left - 1) {
    int i = __builtin_ctzll(left);
    if (issued->checks[i].work <= oldest(issued))
      return work_at(issued, issued->checks[i].work)->last;
  }
  return 0;
}

void mpg_issued_begin(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                      const mpg_task *task) {
  const mpg_submission *work = &task->submission;
  mpg_issued_work entry = {.first = task->first_tick,
                           .last = mpg_task_last_tick(task),
                           .name = work->name,
                           .origin = work->origin,
                           .scope = work->scope,
                           .stage = work->stage,
                           .micro_batch = work->micro_batch,
                           .steps = work->steps};
  bool open = open_checks(issued) != 0;
  if (open) {
    pthread_mutex_lock(mutex);
    mpg_issued_collect(issued, device);
    for (int i = 0; i < work->num_points; i++)
      if (work->points[i].data && work->points[i].device == device)
        entry.checks |= checks_of(issued, work->points[i].tick) & open_checks(issued);
  }
  *work_at(issued, issued->count) = entry;
  issued->count++;
  if (open) pthread_mutex_unlock(mutex);
}

mpg_gpu_report *mpg_issued_check(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                                 mpg_tick first, mpg_tick *wait_for) {
  uint64_t number = issued->count - 1;
  mpg_gpu_report *report = NULL;
  *wait_for = 0;
  pthread_mutex_lock(mutex);
  mpg_issued_collect(issued, device);
  uint64_t open = open_checks(issued);
  int best = -1; /* index of the latest check of this work */
  uint64_t earliest = number;
  for (uint64_t left = open; left; left &= left - 1) {
    int i = __builtin_ctzll(left);
    if (issued->checks[i].work < earliest) earliest = issued->checks[i].work;
    if (issued->checks[i].work == number &&
        (best < 0 || issued->checks[i].first > issued->checks[best].first))
      best = i;
  }
  if (best >= 0 &&
      (issued->checks[best].first == first || (open == UINT64_MAX && earliest == number))) {
    report = &issued->reports->list[best];
  } else if (open == UINT64_MAX) {
    *wait_for = work_at(issued, earliest)->last;
  } else {
    int i = __builtin_ctzll(~open);
    issued->checks[i].work = number;
    issued->checks[i].first = first;
    work_at(issued, number)->checks |= (uint64_t)1 << i;
    atomic_fetch_or_explicit(&issued->open, (uint64_t)1 << i, memory_order_relaxed);
    report = &issued->reports->list[i];
  }
  pthread_mutex_unlock(mutex);
  return report;
}

static void fail(mpg_issued *issued, mpg_device *device, int check) {
  const mpg_gpu_report *report = &issued->reports->list[check];
  const mpg_issued_work *work = work_at(issued, issued->checks[check].work);
  char text[512];
  int length = 0;
  if (report->scope && report->scope != work->scope)
    length = snprintf(text, sizeof text, "in %.200s: ", mpg_scope_text(report->scope));
  snprintf(text + length, sizeof text - (size_t)length, report->format, report->name,
           (long long)report->values[0], (long long)report->values[1], (long long)report->values[2],
           (long long)report->values[3]);
  mpg_submission what = {.name = work->name,
                         .origin = work->origin,
                         .scope = work->scope,
                         .stage = work->stage,
                         .micro_batch = work->micro_batch,
                         .steps = work->steps};
  const mpg_cause *cause = mpg_cause_new(device, (mpg_status)report->status, text, &what);
  mpg_failures_add(device, issued->checks[check].first, work->last, cause);
  for (uint64_t number = issued->checks[check].work + 1; number < issued->count; number++) {
    const mpg_issued_work *later = work_at(issued, number);
    if (later->checks >> check & 1) mpg_failures_add(device, later->first, later->last, cause);
  }
}

void mpg_issued_collect(mpg_issued *issued, mpg_device *device) {
  mpg_tick done = atomic_load_explicit(device->completed, memory_order_acquire);
  if (!issued->reports) return;
  atomic_store(&issued->reports->raised, BEING_READ);
  for (uint64_t left = open_checks(issued); left; left &= left - 1) {
    int i = __builtin_ctzll(left);
    uint64_t bit = (uint64_t)1 << i;
    mpg_gpu_report *report = &issued->reports->list[i];
    if (!(issued->failed & bit) && __atomic_load_n(&report->format, __ATOMIC_ACQUIRE)) {
      fail(issued, device, i);
      issued->failed |= bit;
    }
    if (done < issued->checks[i].first) continue;
    for (uint64_t number = issued->checks[i].work; number < issued->count; number++)
      work_at(issued, number)->checks &= ~bit;
    report->format = NULL;
    issued->failed &= ~bit;
    atomic_fetch_and_explicit(&issued->open, ~bit, memory_order_relaxed);
  }
  uint32_t as_left = BEING_READ; /* keeps `raised` set if a report was raised during the loop */
  atomic_compare_exchange_strong(&issued->reports->raised, &as_left, 0);
}

bool mpg_issued_open_before(mpg_issued *issued, mpg_device *device, mpg_tick tick) {
  if (!open_checks(issued)) return false;
  mpg_issued_collect(issued, device);
  for (uint64_t left = open_checks(issued) & ~issued->failed; left; left &= left - 1)
    if (issued->checks[__builtin_ctzll(left)].first <= tick) return true;
  return false;
}

const mpg_issued_work *mpg_issued_after(const mpg_issued *issued, mpg_tick done) {
  for (uint64_t number = oldest(issued); number < issued->count; number++)
    if (work_at(issued, number)->last > done) return work_at(issued, number);
  return NULL;
}
