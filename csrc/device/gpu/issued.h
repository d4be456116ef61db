/* A log of the work recently issued by a GPU. It records which work was running when the device was
 * lost, and which work depends on device-side assertions (checks) with unknown outcome.
 *
 * A check is a condition on the inputs of work that the card tests, for instance that an index is
 * in range. Its outcome is known only at the work's completion, when dependent work may have been
 * issued already. So each piece of work records the set of open checks that it depends on, and a
 * report fails all work that depends on it. This covers only work on the same device. Work on other
 * devices waits until no check before the required tick is open (mpg_issued_open_before).
 *
 * Ownership: a GPU's state embeds the log. Threads: `begin` and `check` are called by the worker;
 * functions marked so are called with the device's mutex held.
 */
#ifndef MPG_DEVICE_GPU_ISSUED_H
#define MPG_DEVICE_GPU_ISSUED_H

#include <pthread.h>

#include "device/gpu/gpu.h"
#include "device/internal.h"

enum { MPG_ISSUED_KEPT = 1024 };

typedef struct mpg_issued_work {
  mpg_tick first, last;
  uint64_t checks; /* bit set of the checks that it depends on, including its own */
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  uint64_t steps;
} mpg_issued_work;

typedef struct mpg_issued {
  mpg_issued_work *works; /* ring buffer of the latest work */
  uint64_t count;
  mpg_gpu_reports *reports;
  /* Bit set of open checks; the worker adds, the holder of the mutex removes. */
  _Atomic(uint64_t) open;
  uint64_t failed; /* mutex: the open checks whose failure is recorded */
  struct {
    uint64_t work;  /* index of the work */
    mpg_tick first; /* the check fails the ticks from this one to the work's last */
  } checks[MPG_GPU_REPORTS];
} mpg_issued;

mpg_status mpg_issued_init(mpg_issued *issued); /* zeroed by the caller; `reports` is set later */
void mpg_issued_close(mpg_issued *issued);
/* Called before the task runs. */
void mpg_issued_begin(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                      const mpg_task *task);
/* Returns the slot where the running work may report errors from tick `first` on. Returns NULL if
 * all slots are in use; then the caller waits for tick *wait_for. */
mpg_gpu_report *mpg_issued_check(mpg_issued *issued, mpg_device *device, pthread_mutex_t *mutex,
                                 mpg_tick first, mpg_tick *wait_for);
/* Returns the tick to wait for before more work begins, or 0. */
mpg_tick mpg_issued_overflow_tick(mpg_issued *issued);
/* Records reports. The mutex is held. */
void mpg_issued_collect(mpg_issued *issued, mpg_device *device);
/* True if the outcome of a check before `tick` is unknown. The mutex is held. */
bool mpg_issued_open_before(mpg_issued *issued, mpg_device *device, mpg_tick tick);
/* Returns the first work that ends after tick `done`; NULL if all work is finished or if the log no
 * longer has it. The mutex is held. */
const mpg_issued_work *mpg_issued_after(const mpg_issued *issued, mpg_tick done);

#endif
