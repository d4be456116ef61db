/* A log of the work recently issued to a GPU. The log has two purposes: to find the work that was
 * running when the device was lost, and to find the work that depends on a failed device-side
 * assertion (check).
 *
 * A check is a condition on inputs that a kernel tests, for example that an index is in range. Its
 * outcome is known only when the work has completed. Until then the check is open, and dependent
 * work may already have been issued. So each piece of work records the set of open checks that it
 * depends on, and when a check fails, all work that depends on it fails. This covers only work on
 * the same device. Work on other devices waits until no check up to the required tick is open
 * (mpg_issued_open_before).
 *
 * Ownership: a GPU's state embeds the log. Threads: the worker calls `begin` and `check`. Functions
 * marked "the mutex is held" require the device's mutex.
 */
#ifndef MPG_DEVICE_GPU_ISSUED_H
#define MPG_DEVICE_GPU_ISSUED_H

#include <pthread.h>

#include "device/gpu/gpu.h"
#include "device/internal.h"

enum { MPG_ISSUED_KEPT = 1024 };

typedef struct mpg_issued_work {
  mpg_tick first, last;
  uint64_t checks; /* bit set of the checks that the work depends on, including its own */
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  uint64_t steps;
} mpg_issued_work;

typedef struct mpg_issued {
  mpg_issued_work *works; /* ring buffer of the latest work */
  uint64_t count;
  mpg_gpu_reports *reports;
  /* Bit set of open checks. Only the worker adds a check; the holder of the mutex may remove
   * one. */
  _Atomic(uint64_t) open;
  uint64_t failed; /* bit set of open checks whose failure is recorded; guarded by the mutex */
  struct {
    uint64_t work;  /* serial number of the work that the check belongs to */
    mpg_tick first; /* if the check fails, the work fails from this tick on */
  } checks[MPG_GPU_REPORTS];
} mpg_issued;

/* Initializes a log, which the caller has zeroed. The caller sets `reports` later. */
mpg_status mpg_issued_init(mpg_issued *issued);
void mpg_issued_close(mpg_issued *issued);
/* Adds a task to the log, with the open checks that it depends on. Called before the task runs. */
void mpg_issued_begin(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                      const mpg_task *task);
/* Returns the slot where the running work may report errors from tick `first` on. Returns NULL if
 * all slots are in use; the caller must then wait for tick *wait_for and retry. */
mpg_gpu_report *mpg_issued_check(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                                 mpg_tick first, mpg_tick *wait_for);
/* Returns the tick that the worker must wait for before it logs more work, because the oldest entry
 * of the full log still has open checks. Returns 0 if it need not wait. */
mpg_tick mpg_issued_overflow_tick(mpg_issued *issued);
/* Records the failures that the GPU has reported, and closes the checks that have run. The mutex is
 * held. */
void mpg_issued_collect(mpg_issued *issued, mpg_device *device);
/* True if the outcome of any check up to `tick` is unknown. The mutex is held. */
bool mpg_issued_open_before(mpg_issued *issued, mpg_device *device, mpg_tick tick);
/* Returns the first work that ends after tick `done`; NULL if all work is finished or if the log no
 * longer has it. The mutex is held. */
const mpg_issued_work *mpg_issued_after(const mpg_issued *issued, mpg_tick done);

#endif
