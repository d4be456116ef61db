/* Internals shared by the files of csrc/device; no other layer includes it.
 *
 * A failure is a range of failed ticks of a device, with a cause. Work that fails because an
 * earlier failure propagated to it has the same cause. A task is a submission as stored by the
 * backends. Threads: stated in each section.
 */
#ifndef MPG_DEVICE_INTERNAL_H
#define MPG_DEVICE_INTERNAL_H

#include "device/cpu/oversubscription.h"
#include "device/device.h"

extern const mpg_backend mpg_cpu_backend, mpg_shuffle_backend, mpg_gpu_backend;

/* --- Memory in files (cpu.c; see cpu/file_memory.h) ------------------------------------------- */
/* Returns the directory of the files that are the device's memory, or NULL. */
const char *mpg_device_directory(const mpg_device *device);
/* Takes ownership of `directory`. The CPU device must not have allocated memory yet. */
void mpg_device_set_directory(mpg_device *device, char *directory);

/* --- The device table (device.c). Call with the host lock held. ------------------------------- */
mpg_device *mpg_device_find(mpg_device_id id); /* returns NULL if the device is not open */
/* Reserves an entry for one more device, so that mpg_device_table_add cannot fail. */
mpg_status mpg_device_table_reserve(void);
void mpg_device_table_add(mpg_device *device);
void mpg_engine_store_mode(mpg_engine_mode mode);
/* true after mpg_device_shutdown, or in a child forked by running work */
bool mpg_engine_refuses_work(void);
void mpg_engine_refuse_work(void);
/* Called when the process exits. Kernel caches are then leaked, because the libraries that free
 * them may have been torn down. */
void mpg_engine_note_exit(void);
/* Called by the backend's `close` once the device runs no more work. */
void mpg_device_free_kernel_cache(mpg_device *device);
/* Returns the device whose work this thread is running or discarding, either as the device's worker
 * or on behalf of the worker. NULL if none. May be called from any thread. */
mpg_device *mpg_worker_device(void);
void mpg_worker_set_device(mpg_device *device);

/* --- Failures (failure.c). May be called from any thread. ------------------------------------- */
typedef struct mpg_cause mpg_cause; /* never freed */

mpg_status mpg_failures_open(mpg_device *device);
/* Frees the records of a device that could not be opened. */
void mpg_failures_close(mpg_device *device);
/* Creates a cause from an error message. Never returns NULL: if memory runs out, returns a
 * statically allocated cause. */
const mpg_cause *mpg_cause_new(mpg_device *device, mpg_status status, const char *text,
                               const mpg_submission *submission);
/* Returns the cause of a tick's failure; NULL if the tick did not fail. */
const mpg_cause *mpg_failures_find(mpg_device *device, mpg_tick tick);
void mpg_failures_add(mpg_device *device, mpg_tick first, mpg_tick last, const mpg_cause *cause);
const char *mpg_failures_text(const mpg_cause *cause);
/* Sets the thread's error text and returns the status. Marks the cause as reported, except on a
 * worker, which only propagates the failure to later work. */
mpg_status mpg_failures_report(const mpg_cause *cause);
/* Returns the first cause that has not been reported, or NULL. Marks all causes as reported. */
const mpg_cause *mpg_failures_unreported(mpg_device *device);
/* Clears the failure that mpg_device_failure last returned on this thread, so that a failure of new
 * work is not attributed to it. Called when the thread starts new work. */
void mpg_failures_forget_passed_on(void);
void mpg_failures_fork_prepare(mpg_device *device);
void mpg_failures_fork_done(mpg_device *device, bool child);

/* --- Running tasks (task.c). Called by the thread that runs the device's work. ---------------- */
typedef struct mpg_task {
  mpg_submission submission; /* the queue owns the copies of payload and points */
  mpg_tick first_tick;
} mpg_task;

static inline mpg_tick mpg_task_last_tick(const mpg_task *task) {
  return task->first_tick + task->submission.ticks - 1;
}

/* Starts a task whose points are reached (if blocked_on->device is NULL), or resumes a suspended
 * task. Returns false if the task suspended itself; the caller calls again when *blocked_on is
 * reached. Returns true when the task is done. By then, its failure (if any) has been recorded and
 * its payload discarded. The caller must then store `completed`. */
bool mpg_task_advance(mpg_device *device, const mpg_task *task, mpg_point *blocked_on);
/* Discards a task without running it and records the shutdown as its failure. Does not advance
 * `completed`. */
void mpg_task_drop(mpg_device *device, const mpg_task *task);

/* Discards a task and records the thread's error text as its failure. */
void mpg_task_fail(mpg_device *device, const mpg_task *task, mpg_status status);

/* FIFO list of tasks, for backends without a worker. Not thread-safe: the owner's lock protects
 * it. */
typedef struct mpg_kept_task {
  struct mpg_kept_task *next;
  mpg_point blocked_on; /* device is NULL if not suspended */
  mpg_task task;        /* followed in memory by points and payload */
} mpg_kept_task;
typedef struct mpg_task_list {
  mpg_kept_task *first, **last;
} mpg_task_list;
void mpg_task_list_init(mpg_task_list *list);
/* Appends a copy of the submission. */
mpg_status mpg_task_list_add(mpg_task_list *list, const mpg_submission *submission,
                             mpg_tick first_tick);
/* Removes and returns the first task of a nonempty list. The caller frees it. */
mpg_kept_task *mpg_task_list_take(mpg_task_list *list);
void mpg_task_list_move(mpg_task_list *from, mpg_task_list *to); /* appends all tasks to `to` */
/* Frees the tasks without discarding their payloads, which their creators still own. */
void mpg_task_list_drop(mpg_task_list *list);
/* True if the first task can run: all its points are reached or, if it is suspended, the point that
 * it waits for is reached. False if the list is empty. */
bool mpg_task_list_ready(const mpg_task_list *list);

enum { MPG_RECENT = 2048 }; /* length of mpg_device.recent, the submission history */

/* --- Spinning (spin.c). May be called from any thread. ---------------------------------------- */
static inline void mpg_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
/* Returns 1 + the core that this thread runs on, or 0 if unknown. A thread must not spin while it
 * waits for a thread on the same core, because that thread could not run. */
int mpg_this_core(void);
/* Spins until the tick is reached, `ns` nanoseconds have passed, or the device's worker runs on
 * this core. Returns true if the tick is reached. May be called from any thread. */
bool mpg_tick_spin(const mpg_device *device, mpg_tick tick, int64_t ns);
int64_t mpg_spin_limit_ns(void); /* longest spin that costs less than sleeping; 0 on one core */
/* Registers a spinning worker. Returns true if the worker may spin. At least one core stays free of
 * spinning workers. */
bool mpg_idle_spin_begin(void);
/* Required after each mpg_idle_spin_begin, even if it returned false. */
void mpg_idle_spin_end(void);
void mpg_idle_spin_forget(void); /* called in a forked child, which has no workers */

/* --- Waiting (wait.c) ------------------------------------------------------------------------- */
/* Waits for a tick without a time limit. Not interruptible. If `give_up_lock`, releases the host
 * lock while it blocks. */
void mpg_tick_wait(mpg_device *device, mpg_tick tick, bool give_up_lock);
/* Waits for `tick`, at which the device's queue has room for more work. Interruptible. Returns
 * early if the device waits at a rendezvous, which may need work that the host has yet to queue. */
mpg_status mpg_room_wait(mpg_device *device, mpg_tick tick);

/* --- Settings (settings.c). May be called from any thread, after mpg_settings_read. ----------- */
typedef struct mpg_start_settings {
  int fixed_threads;    /* MPGLUON_CPU_THREADS */
  mpg_engine_mode mode; /* MPGLUON_ENGINE */
  uint64_t seed;        /* MPGLUON_ENGINE_SEED */
} mpg_start_settings;
/* Reads all settings of this layer. Sets *start to the initial values of settings that can be
 * changed later. */
mpg_status mpg_settings_read(mpg_start_settings *start);
int64_t mpg_idle_spin_ns(void);            /* longest spin of an idle worker (MPGLUON_SPIN) */
mpg_team_spin mpg_team_spin_setting(void); /* MPGLUON_TEAM_SPIN */
bool mpg_pool_poison_setting(void);        /* MPGLUON_POOL_POISON */

/* --- Shuffled execution (shuffle.c) ----------------------------------------------------------- */
void mpg_shuffle_seed(uint64_t seed);

/* --- Pool and profiler ------------------------------------------------------------------------ */
/* Sets the total size of the device's scratch buffers, which the statistics include. Fails if the
 * memory in use would exceed the limit. Called by the thread that runs the device's work. */
mpg_status mpg_pool_resize_scratch(mpg_pool *pool, size_t size);

#endif
