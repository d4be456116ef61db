/* Internals shared by the files of csrc/device; no other layer includes it.
 *
 * Failures: per device, ranges of ticks that failed, each with a cause; a cause is shared by all
 * ranges it spread to. Tasks: a submission as the backends keep it. Threads: as said at each
 * function.
 */
#ifndef MPG_DEVICE_INTERNAL_H
#define MPG_DEVICE_INTERNAL_H

#include "device/oversubscription.h"
#include "device/device.h"

extern const mpg_backend mpg_cpu_backend, mpg_shuffle_backend, mpg_gpu_backend;

/* --- Failures (failure.c). Any thread. -------------------------------------------------------- */
typedef struct mpg_cause mpg_cause; /* lives as long as the process */

mpg_status mpg_failures_open(mpg_device *device);
void mpg_failures_close(mpg_device *device); /* of a device that could not be opened */
const mpg_cause *mpg_cause_new(mpg_device *device, mpg_status status, const char *text,
                               const mpg_submission *submission); /* never NULL */
const mpg_cause *mpg_failures_find(mpg_device *device,
                                   mpg_tick tick); /* NULL: that tick did not fail */
void mpg_failures_add(mpg_device *device, mpg_tick first, mpg_tick last, const mpg_cause *cause);
const char *mpg_failures_text(const mpg_cause *cause);
/* Sets the error text. Marks the cause as reported, except on a worker, which passes it on. */
mpg_status mpg_failures_report(const mpg_cause *cause);
const mpg_cause *mpg_failures_unreported(
    mpg_device *device); /* the first one; all are marked as reported. NULL: none */
void mpg_failures_forget_passed_on(
    void); /* this thread begins other work, which passes on failures that it asks for from now */
void mpg_failures_fork_prepare(mpg_device *device);
void mpg_failures_fork_done(mpg_device *device, bool child);

/* --- Running tasks (task.c). By whoever runs the device's work. ------------------------------- */
typedef struct mpg_task {
  mpg_submission submission; /* payload and points are the queue's own copies */
  mpg_tick first_tick;
} mpg_task;

static inline mpg_tick mpg_task_last_tick(const mpg_task *task) {
  return task->first_tick + task->submission.ticks - 1;
}

/* Begins a task whose points are reached (blocked_on->device NULL), or goes on with it. False:
 * suspended, to be called again when *blocked_on is reached. True: done, failures recorded and
 * payload discarded; the caller stores `completed`. */
bool mpg_task_advance(mpg_device *device, const mpg_task *task, mpg_point *blocked_on);
/* Instead of running: discards and records a failure saying so. Not advanced to `completed`. */
void mpg_task_drop(mpg_device *device, const mpg_task *task);

/* The same for another reason, in the thread's error text. */
void mpg_task_fail(mpg_device *device, const mpg_task *task, mpg_status status);

/* Tasks one after the other, of backends whose queues are lists. Whoever owns the list. */
typedef struct mpg_kept_task {
  struct mpg_kept_task *next;
  mpg_point blocked_on; /* device NULL: not suspended */
  mpg_task task;        /* points and payload follow */
} mpg_kept_task;
typedef struct mpg_task_list {
  mpg_kept_task *first, **last;
} mpg_task_list;
void mpg_task_list_init(mpg_task_list *list);
/* Appends a copy of the submission. */
mpg_status mpg_task_list_add(mpg_task_list *list, const mpg_submission *submission,
                             mpg_tick first_tick);
/* Takes the first task out of a list that has one; the caller frees it. */
mpg_kept_task *mpg_task_list_take(mpg_task_list *list);
void mpg_task_list_move(mpg_task_list *from, mpg_task_list *to); /* all, behind what is there */
void mpg_task_list_drop(mpg_task_list *list);                    /* payloads stay their makers' */
/* Whether there is a first task, and what it waits for is reached. */
bool mpg_task_list_ready(const mpg_task_list *list);

/* The device whose work this thread is running as its worker, or NULL. */
mpg_device *mpg_worker_device(void);
void mpg_worker_set_device(mpg_device *device);

/* By the backend's close, when nothing runs any more. */
void mpg_device_free_kernel_cache(mpg_device *device);

enum { MPG_RECENT = 2048 }; /* submissions that a device remembers */

/* --- Waiting (wait.c) ------------------------------------------------------------------------- */
static inline void mpg_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
/* 1 + the core that this thread runs on; 0: not known. Who waits for a thread on the same core must
 * not spin: that one would not run. */
int mpg_this_core(void);
/* Spins until the tick is reached or `ns` have passed, as long as the device's worker is on another
 * core. True when reached. Any thread. */
bool mpg_tick_spin(const mpg_device *device, mpg_tick tick, int64_t ns);
/* Waits however long it takes. Host lock: given up while blocking if `give_up_lock`. No interrupts.
 */
void mpg_tick_wait(mpg_device *device, mpg_tick tick, bool give_up_lock);
/* The same, interruptible; not while the device waits for what the host has yet to queue. */
mpg_status mpg_room_wait(mpg_device *device, mpg_tick tick);
int64_t mpg_spin_limit_ns(void); /* the longest spin that pays here: 0 on one core */
int64_t mpg_idle_spin_ns(void);  /* the same for workers that have nothing to do (MPGLUON_SPIN) */
bool mpg_idle_spin_begin(
    void);                    /* whether one more thread may spin: one core is left to the caller */
void mpg_idle_spin_end(void); /* whatever that said */

mpg_team_spin mpg_team_spin_setting(void); /* MPGLUON_TEAM_SPIN */
bool mpg_pool_poison_setting(void);        /* MPGLUON_POOL_POISON */

/* --- The shuffled order (mock.c) -------------------------------------------------------------- */
void mpg_shuffle_seed(uint64_t seed);

/* --- Pool and profiler ------------------------------------------------------------------------ */
/* Sets the total size of the device's scratch buffers. Called by the thread that runs the device's
 * work. */
mpg_status mpg_pool_resize_scratch(mpg_pool *pool, size_t size);
/* Frees the device's scratch buffers: host lock, device idle. */
void mpg_device_free_scratch(mpg_device *device);

#endif
