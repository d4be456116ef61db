/* A log of the work that a GPU has issued lately. It tells which work was running when the device
 * was lost, and which work depends on device-side assertions (checks) with unknown outcome.
 *
 * A check is a condition on the inputs of work that the card tests (an index must be in range). Its
 * outcome comes with the work's completion, when work that depends on it may have been issued: each
 * work carries the set of the open checks that it depends on, and a report fails them all. Only
 * work on the same device does so; others wait until there is no open check before the tick they
 * need (mpg_issued_open_before).
 *
 * Ownership: a GPU's state embeds it. Threads: `begin` and `check` are the worker's; what says so
 * is called with the device's mutex held.
 */
#ifndef MPG_DEVICE_GPU_ISSUED_H
#define MPG_DEVICE_GPU_ISSUED_H

#include <pthread.h>

#include "device/gpu/gpu.h"
#include "device/internal.h"

enum { MPG_ISSUED_KEPT = 1024 };

typedef struct mpg_issued_work {
  mpg_tick first, last;
  uint64_t checks; /* that it depends on, its own among them: bits by number */
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  uint64_t steps;
} mpg_issued_work;

typedef struct mpg_issued {
  mpg_issued_work *works; /* a ring of the latest */
  uint64_t count;
  mpg_gpu_reports *reports;
  _Atomic(uint64_t) open; /* checks; the worker adds, the holder of the mutex removes */
  uint64_t failed;        /* mutex: of these, reported and recorded */
  struct {
    uint64_t work;  /* its number */
    mpg_tick first; /* which ticks it fails: from this one to the work's last */
  } checks[MPG_GPU_REPORTS];
} mpg_issued;

mpg_status mpg_issued_init(mpg_issued *issued); /* zeroed before; `reports` comes later */
void mpg_issued_close(mpg_issued *issued);
/* The task is about to run. */
void mpg_issued_begin(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                      const mpg_task *task);
/* The place where the running work may report errors from tick `first` on. NULL: all places are
 * taken; wait for tick *wait_for. */
mpg_gpu_report *mpg_issued_check(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                                 mpg_tick first, mpg_tick *wait_for);
/* The tick to wait for before another work begins, or 0. */
mpg_tick mpg_issued_oversubscribed(mpg_issued *issued);
/* Records reports. With the mutex held. */
void mpg_issued_collect(mpg_issued *issued, mpg_device *device);
/* Whether the outcome of a check before `tick` is not known. With the mutex. */
bool mpg_issued_open_before(mpg_issued *issued, mpg_device *device, mpg_tick tick);
/* The first work that is not done; NULL: too far back, or all are. With the mutex. */
const mpg_issued_work *mpg_issued_after(const mpg_issued *issued, mpg_tick done);

#endif
