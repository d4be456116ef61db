/* Devices. Each device has a work queue, a memory pool and a backend that implements it.
 *
 * Timeline. A device counts the work submitted to it (`submitted`) and the work done (`completed`).
 * Both counts are monotonic. A tick is one value of these counts. A point (device, tick) is reached
 * when completed >= tick. Work on one device runs in submission order. Work that depends on another
 * device carries the points that it must wait for.
 *
 * Lock-free handover. Submission happens under the host lock (base/host.h), so each queue has one
 * producer, the thread that holds the lock, and one consumer, the worker. `completed` is stored
 * with release order after all effects of the work, including its use of device scratch. So a
 * thread that holds the host lock and sees completed == submitted owns the whole device until it
 * submits work. Inline execution relies on this.
 *
 * Failures. Failed work leaves a failure record for its ticks. Work that reads data from failed
 * ticks fails without running. A wait for a value reports the failure of the work that computes it.
 * The device continues to run work that does not depend on the failure.
 *
 * Ownership: the device table owns the devices, which live until the process ends. Threads: callers
 * hold the host lock, unless stated otherwise.
 */
#ifndef MPG_DEVICE_DEVICE_H
#define MPG_DEVICE_DEVICE_H

#include "base/atomic.h"
#include "base/philox.h"
#include "base/status.h"

typedef uint64_t mpg_tick;
typedef struct mpg_device mpg_device;
typedef struct mpg_pool mpg_pool;

typedef enum mpg_device_type {
  MPG_CPU = 1,
  MPG_GPU = 2,
  MPG_CPU_PINNED = 3,
  MPG_CPU_SHARED = 5,
  MPG_CPU_SIDE = 6 /* a second queue of a CPU device; see mpg_device_side */
} mpg_device_type;

typedef struct mpg_device_id { /* the fields of a Python `Context`; types have MXNet's numbers */
  int32_t type;
  int32_t index;
  /* 1 + the rank of the process that owns the device (ranks/ranks.h); 0 means this process. */
  int32_t rank;
} mpg_device_id;

/* Text form of a device id, such as "cpu(0)" or "cpu(0, rank=1)". */
typedef struct mpg_device_id_name {
  char text[48];
} mpg_device_id_name;
mpg_device_id_name mpg_device_id_text(mpg_device_id id);
static inline bool mpg_device_id_equal(mpg_device_id a, mpg_device_id b) {
  return a.type == b.type && a.index == b.index && a.rank == b.rank;
}
/* Returns the name of a device type, such as "cpu". Returns NULL for types that users cannot
 * name. */
const char *mpg_device_type_name(int32_t type);
/* Parses one device at *text and advances *text past its end. "cpu" means "cpu(0)". Returns false
 * if *text does not start with a device. */
bool mpg_device_id_parse(const char **text, mpg_device_id *id);

typedef struct mpg_point {
  mpg_device *device;
  mpg_tick tick;
  bool data; /* the work reads data written at the point, so it fails if the writer failed */
} mpg_point;

/* Context of running work. Lives on the worker's stack. */
typedef struct mpg_run {
  mpg_device *device;
  int num_threads;             /* number of threads that this work may use */
  mpg_tick first_tick;         /* first tick of the work */
  mpg_tick last_tick;          /* last tick of the work; reached when the work returns */
  mpg_point blocked_on;        /* set by mpg_run_wait when it returns false */
  void *stream;                /* CUDA stream that receives the work; NULL on CPU devices */
  uint32_t stage, micro_batch; /* copied from the submission */
} mpg_run;

/* Function that runs submitted work. `payload` is the queue's copy of the payload. The function may
 * suspend itself: if mpg_run_wait returns false, the function keeps its state in the payload and
 * returns MPG_OK. Once the point is reached, it is called again with the same payload. */
typedef mpg_status (*mpg_work_fn)(mpg_run *run, void *payload);

typedef struct mpg_submission {
  const char *name; /* for the profiler and error messages; static */
  mpg_work_fn work;
  const void *payload; /* copied when the work is queued */
  size_t payload_size;
  const mpg_point *points; /* copied when the work is queued */
  int num_points;
  mpg_tick ticks;  /* number of ticks that the work takes; 0 means 1 */
  uint32_t origin; /* source line that queued the work (mpg_host_origin); 0 means unknown */
  uint32_t scope;  /* number of the block's path (mpg_scope_text); 0 means none */
  uint32_t stage, micro_batch; /* pipelines only: 1 + the index; 0 means none */
  /* Loop position: 1 + the step of the innermost loop in the low 32 bits, and 1 + the step of the
   * enclosing loop in the high 32 bits. 0 means none. */
  uint64_t steps;
  /* Optional destructor of the payload. The worker or the host calls it exactly once per
   * submission: after the work has returned for the last time, after it has failed, when it will
   * never run, or when submission fails. */
  void (*discard)(void *payload);
} mpg_submission;

/* Memory statistics of a device, in bytes. */
typedef struct mpg_memory_stats {
  size_t in_use;      /* used by arrays, program frames and scratch */
  size_t peak_in_use; /* largest in_use since the start or the last reset */
  size_t held;        /* allocated from the system: bytes in use and cached bytes */
  size_t peak_held;
  size_t limit;                /* 0 means none */
  uint64_t allocations;        /* successful calls to mpg_pool_alloc */
  uint64_t system_allocations; /* allocations from the system */
} mpg_memory_stats;

/* Functions for sharing memory (DLPack) with other libraries that use the same hardware on their
 * own streams. */
typedef struct mpg_sharing {
  int (*card)(mpg_device *device); /* CUDA's index of the physical GPU */
  /* Returns the stream that an import passes to the producer (`__dlpack__(stream=...)`). The
   * producer makes this stream wait for its work on the data. Work that we queue after `received`
   * runs after everything on this stream. */
  void *(*stream)(mpg_device *device);
  mpg_status (*received)(mpg_device *device);
  /* Blocks until the data of all earlier copy_from_host calls has reached the device. */
  mpg_status (*arrived)(mpg_device *device);
  /* Makes work that we queue after this call run after the work that other libraries have put on
   * the default stream. */
  mpg_status (*follow_default)(mpg_device *device);
  mpg_status (*settle)(mpg_device *device); /* blocks until the hardware has finished all work */
} mpg_sharing;

/* Backend: the functions that implement one kind of device. Every function is required unless
 * marked optional. */
typedef struct mpg_backend {
  const char *name; /* such as "cpu" */
  /* Fills device->backend_state; must not start threads, which a fork would lose. */
  mpg_status (*open)(mpg_device *device);
  /* Called at exit, for all devices before the first `close`. Asks the worker to stop once its
   * running work has finished. */
  void (*stop)(mpg_device *device);
  /* Called at exit, after `stop`. Waits until the worker has stopped, and discards the remaining
   * work as failed. */
  void (*close)(mpg_device *device);
  /* Allocates memory for the pool from the system, 64-byte aligned. */
  mpg_status (*allocate)(mpg_device *device, size_t size, void **memory);
  void (*free)(mpg_device *device, void *memory, size_t size);
  /* Optional. Returns to the system the freed memory that the driver has cached. Waits for work
   * issued before the memory was freed. May be called from any thread. */
  void (*trim)(mpg_device *device);
  /* Two-phase submission, so that either all devices of a call accept their work or none does.
   * enqueue copies the work and starts nothing. publish, which cannot fail, lets all enqueued work
   * run. wake (optional) is called after publish and wakes the worker if it sleeps. retract removes
   * work that was enqueued and not published, without discarding payloads. */
  mpg_status (*enqueue)(mpg_device *device, const mpg_submission *submission, mpg_tick first_tick);
  void (*publish)(mpg_device *device);
  void (*wake)(mpg_device *device);
  void (*retract)(mpg_device *device);
  /* Blocks until `tick` is completed or `timeout_ns` has passed. Returns true if it is completed.
   * The host lock must NOT be held. */
  bool (*wait)(mpg_device *device, mpg_tick tick, int64_t timeout_ns);
  /* Takes the backend's locks before a fork. All queued work has finished. */
  void (*fork_prepare)(mpg_device *device);
  /* Releases the backend's locks in the parent. In the child, which has no workers, resets locks
   * and queues. */
  void (*fork_done)(mpg_device *device, bool child);
  /* Called by running work. See mpg_run_wait and mpg_run_signal. */
  bool (*run_wait)(mpg_run *run, mpg_point point);
  void (*run_signal)(mpg_run *run, mpg_tick tick);
  /* Blocking copies between device and host memory. The caller has already waited for all work that
   * uses the memory. */
  mpg_status (*copy_to_host)(mpg_device *device, void *host, const void *memory, size_t size);
  mpg_status (*copy_from_host)(mpg_device *device, void *memory, const void *host, size_t size);
  /* Optional: implements mpg_device_copy, ordered with the device's running work. NULL if the
   * device's work runs on the host. */
  mpg_status (*run_copy)(mpg_device *device, mpg_device *to, void *target, mpg_device *from,
                         const void *source, size_t size);
  /* Copies to host memory and blocks until the data has arrived. Required if memory is not
   * host_accessible. Fails if a check (gpu/issued.h) that the work depends on has failed. */
  mpg_status (*run_copy_to_host)(mpg_device *device, void *host, const void *source, size_t size);
  /* Optional: returns the free and total memory of the physical device, which all logical devices
   * on it share. */
  mpg_status (*memory)(mpg_device *device, size_t *free_bytes, size_t *total);
  /* Optional: returns the latest tick whose work has completed or has been issued to the stream,
   * even if the work fails later. If NULL, the latest completed tick is used. */
  mpg_tick (*issued)(mpg_device *device);
  /* Optional: called when running work has failed. The thread's error text describes the failure.
   * The backend checks whether the device itself is lost, because all later work on a lost device
   * fails. */
  void (*work_failed)(mpg_device *device, mpg_status status);
  /* Optional: called before running work blocks, possibly until the host queues more work.
   * Publishes the progress so far, so that other devices can continue. Fails if a check
   * (gpu/issued.h) that the work depends on has failed, because the work's data must then not reach
   * other devices. The outcome of a check is known only once the stream has run it, so a caller
   * that passes on data must first wait for the stream. */
  mpg_status (*work_waits)(mpg_device *device);
  /* Optional: captures (CUDA graphs), which replay recorded work as a unit (see gpu.h). Called by
   * running work, except capture_free, which any thread may call. */
  mpg_status (*capture_begin)(mpg_device *device, void **stream);
  bool (*capture_void)(mpg_device *device);
  mpg_status (*capture_end)(mpg_device *device, bool keep, void **capture);
  mpg_status (*capture_run)(mpg_device *device, void *capture);
  void (*capture_free)(mpg_device *device, void *capture);
  /* Required with captures: writes `count` keys to the start of mpg_device.keys, ordered with the
   * running work. Copies `keys` before it returns. The first call allocates mpg_device.keys; if
   * `count` is 0, it does nothing else. */
  mpg_status (*capture_keys)(mpg_device *device, const mpg_random_key *keys, int count);
  /* Optional: blocks running work until its device has completed all work issued so far. */
  void (*drain)(mpg_device *device);
  /* Optional: records the failures that the device itself has reported (mpg_device.raised). May be
   * called from any thread. */
  void (*collect)(mpg_device *device);
  const mpg_sharing *sharing; /* NULL if other libraries access the memory as host memory */
  bool host_accessible;       /* the host can read and write the device's memory directly */
  bool runs_in_wait;          /* work runs only in `wait`, so waiting threads must not spin */
  /* If the device is idle, small work may run in the submitting thread. */
  bool runs_inline;
} mpg_backend;

enum { MPG_CAPTURE_KEYS = 64 }; /* maximum number of random keys per capture */

/* Record of a submission, kept for status reports and error messages. */
typedef struct mpg_submitted {
  mpg_tick last;
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  int64_t queued_ns; /* time of publication (mpg_clock_ns); 0 if the profiler was off */
} mpg_submitted;
/* Returns the latest submission; NULL before the first one. */
const mpg_submitted *mpg_device_latest(const mpg_device *device);

struct mpg_device {
  mpg_device_id id;
  int32_t ordinal;   /* position in the device table */
  mpg_device *older; /* the device opened before this one; NULL for the first */
  const mpg_backend *backend;
  void *backend_state;
  void *stream; /* owned by the backend; NULL on CPU devices */
  bool remote; /* owned by another rank; has no memory or kernels in this process (ranks/ranks.h) */
  bool captures; /* the backend supports captures, and they are enabled */
  /* MPG_CAPTURE_KEYS random keys in the device's memory. Captured work reads them when it runs, so
   * each replay can use new keys. NULL until the first use. Accessed only by running work. */
  mpg_random_key *keys;
  /* Written by the backend, read by any thread. Points to `own_completed`, or to memory that the
   * device itself writes to. */
  _Atomic(mpg_tick) *completed;
  mpg_tick submitted;       /* host lock */
  _Atomic(bool) failed;     /* some work has failed; `failures` has the records */
  _Atomic(int) num_threads; /* threads that the device's work may use; CPU devices only */
  mpg_pool *pool;
  struct {
    void *memory;
    size_t size;
  } scratch[3]; /* indexed by mpg_scratch_slot */
  /* True while work that uses scratch is captured. Scratch must then not grow, because the captured
   * kernels contain its address. Accessed only by running work. */
  bool scratch_stays;
  void *kernel_cache; /* data that kernels keep between calls, such as library handles */
  void (*kernel_cache_free)(void *cache); /* frees kernel_cache when the device is closed */
  struct mpg_failures *failures;          /* failure records; see mpg_device_fail */
  /* Set by the hardware when it has failures to report, before it writes `completed`. NULL if the
   * device reports no failures itself. */
  _Atomic(uint32_t) *raised;
  struct mpg_event_buffer *events; /* profiler events */
  /* Ring buffer of the latest MPG_RECENT submissions. Guarded by the host lock. */
  mpg_submitted *recent;
  uint64_t submissions;
  mpg_device_id_name name; /* text of `id` */
  /* Progress of the running work, for the watchdog. Written by the worker. */
  struct {
    /* Op of the current instruction (a static string); NULL if unknown. */
    _Atomic(const char *) name;
    _Atomic(uint32_t) scope;
    /* 1 + ordinal of the device that the work waits for; 0 if not waiting */
    _Atomic(int32_t) peer;
    _Atomic(mpg_tick) tick;   /* tick of the peer that the work waits for */
    _Atomic(bool) rendezvous; /* the work waits at a rendezvous (rendezvous.h) */
    _Atomic(int) core;        /* 1 + the core that the worker last ran on; 0 if unknown */
  } at;
  _Alignas(64) _Atomic(mpg_tick) own_completed; /* on its own cache line, to avoid false sharing */
};

/* True if work on the device has failed, or if the device has unread failure reports. The hardware
 * sets `raised` before the ticks of the failed work complete, so no failure is missed. `failed` is
 * read last, because another thread may record the failures and clear `raised` between the two
 * reads. May be called from any thread. */
static inline bool mpg_device_has_failed(const mpg_device *device) {
  return (device->raised && atomic_load_explicit(device->raised, memory_order_acquire)) ||
         atomic_load_explicit(&device->failed, memory_order_acquire);
}

/* Sets *device to the device with this id, which is opened on first use. If the device is
 * unavailable, the error says why. Pinned and shared CPU memory belong to cpu(index). */
mpg_status mpg_device_get(mpg_device_id id, mpg_device **device);
/* Sets *side to the side device of a CPU device: a second queue with one thread, whose work runs
 * concurrently with the device's own work. Its accesses to the device's arrays are ordered like
 * those of any other device. Opened on first use. Sets *side to NULL if `device` is not a CPU
 * device. */
mpg_status mpg_device_side(mpg_device *device, mpg_device **side);
int mpg_device_count(void); /* devices opened so far */
mpg_device *mpg_device_at(int ordinal);
/* Returns the device opened last; NULL if none is open. Together with `older`, enumerates all
 * devices. May be called from any thread. */
mpg_device *mpg_device_newest(void);
/* Returns MPG_OK if a collective over these devices can be one NCCL op. The devices must be
 * different physical GPUs of this process, and NCCL must be available. Otherwise the error says why
 * not. Call with the host lock held. */
mpg_status mpg_gpu_collectives(const mpg_device_id *ids, int count);
/* Returns the number of usable GPUs. If it is 0, sets *reason (static); `reason` may be NULL. */
int mpg_gpu_count(const char **reason);
/* Returns entry `number` of the list of NVIDIA libraries. Returns NULL if the number is out of
 * range or no GPU is usable. Call with the host lock held. */
const struct mpg_library *mpg_gpu_vendor_library(int number);
/* Returns the free and total memory of a GPU. A memory limit replaces the total if it is lower. */
mpg_status mpg_device_memory(mpg_device *device, size_t *free_bytes, size_t *total);
/* Returns unused memory to the system: the pool's cached blocks, scratch if the device is idle, and
 * memory that the driver has cached. Waits for queued work that still uses cached blocks. */
mpg_status mpg_device_trim(mpg_device *device);
static inline const char *mpg_device_text(const mpg_device *device) { return device->name.text; }

/* Sets the number of threads per CPU device. 0 divides the machine's cores among the open CPU
 * devices. */
mpg_status mpg_device_set_threads(int n);
int mpg_machine_cores(void); /* number of cores that this process may use */

/* Queuing. All work is queued by mpg_device_queue. Calls are atomic: from collecting the points to
 * recording the uses, no other host thread and no finalizer runs.
 *
 * Steps, in order:
 * 1. Waits for room if the queue is nearly full. This releases the host lock and may be
 * interrupted.
 * 2. `prepare` reads the storages, collects points (into an empty list) and fills in one submission
 * per device.
 * 3. Queues all submissions or none. No other submission can interleave, so all devices get the
 * work of two calls in the same order, and work that waits for its peers cannot deadlock.
 * 4. `note` records the uses in the storages. It gets the last tick of each submission.
 * 5. Only then waits for the work if the mode is synchronous.
 *
 * Neither `prepare` nor `note` may release the host lock (base/host.h counts its releases). A
 * violation aborts the process in debug builds and in tests. Callers allocate storages and look up
 * the host's source line before the call, as both may release the lock.
 *
 * In `prepare`, the first tick of submission i is mpg_device_next_tick(devices[i]), so payloads can
 * contain each other's ticks. A device may occur more than once; its submissions run in that order.
 * If `prepare` fails, nothing is queued and the caller keeps the payloads. If a later step fails,
 * the payloads are discarded. If `prepare` sets *done, it has run and recorded the work itself, and
 * nothing is queued. In synchronous mode the work has finished on return, and its failure is
 * returned. */
enum { MPG_MOST_TOGETHER = 72 };
/* List of points. All calls share one list, because only one thread runs `prepare` at a time. */
typedef struct mpg_point_list {
  mpg_point *points;
  size_t capacity;
  int begin, count; /* points[begin..count-1] belong to the next submission */
} mpg_point_list;
typedef struct mpg_queuing {
  mpg_device *const *devices;
  int count; /* at most MPG_MOST_TOGETHER */
  mpg_status (*prepare)(void *state, mpg_point_list *points, mpg_submission *submissions,
                        bool *done);
  void (*note)(void *state, const mpg_tick *ticks);
  void *state;
} mpg_queuing;
mpg_status mpg_device_queue(const mpg_queuing *queuing);
static inline mpg_tick mpg_device_next_tick(const mpg_device *device) {
  return device->submitted + 1;
}

static inline bool mpg_tick_reached(const mpg_device *device, mpg_tick tick) {
  return atomic_load_explicit(device->completed, memory_order_acquire) >= tick;
}
/* True if all submitted work has completed. The caller, which holds the host lock, may then run
 * work of this device itself until it submits work or releases the lock. */
static inline bool mpg_device_idle(const mpg_device *device) {
  return mpg_tick_reached(device, device->submitted);
}
static inline bool mpg_device_runs_inline(const mpg_device *device) {
  return device->backend->runs_inline && mpg_device_idle(device);
}

/* Waits for a point and checks for interrupts. Releases the host lock while it blocks, unless
 * keep_lock. With keep_lock, no other thread can queue work during the wait, but signal handlers
 * can. Returns the failure of the point's work if point.data, or MPG_INTERRUPTED. */
mpg_status mpg_point_wait(mpg_point point, bool keep_lock);
/* Waits for all work submitted to all devices. Returns the first failure that has not been reported
 * yet. */
mpg_status mpg_wait_all(void);

/* Returns MPG_OK if the work of a tick has not failed. Otherwise sets this thread's error text and
 * returns the status of the failure. Under the host lock, the text names the source line that
 * queued the work. Running work may also call this; it must then return the status, which
 * propagates the failure to its own ticks. */
mpg_status mpg_device_failure(mpg_device *device, mpg_tick tick);
/* Records this thread's current error text as the failure of the ticks first..last. May be called
 * from any thread; backends call it before they store `completed`. */
void mpg_device_fail(mpg_device *device, mpg_tick first, mpg_tick last, mpg_status status,
                     const mpg_submission *submission);

/* For running work only. mpg_run_wait returns true if the point is reached, or if the backend
 * orders the rest of the work after it (as with CUDA events). If it returns false, the work must
 * return MPG_OK at once and is called again later. mpg_run_signal marks `tick` as reached before
 * the work ends, and waiting threads then see all effects of the work so far. Successive ticks must
 * increase, from first_tick to at most last_tick - 1. */
static inline bool mpg_run_wait(mpg_run *run, mpg_point point) {
  return mpg_tick_reached(point.device, point.tick) || run->device->backend->run_wait(run, point);
}
static inline void mpg_run_signal(mpg_run *run, mpg_tick tick) {
  run->device->backend->run_signal(run, tick);
}

/* For running work. mpg_device_copies is true if a copy between the two devices' memories needs a
 * backend's copy function, because the host cannot access both memories. mpg_device_copy makes that
 * copy, ordered with the work of `running`, which is one of the two devices. The work has already
 * waited for all uses of the memory. */
static inline bool mpg_device_copies(const mpg_device *to, const mpg_device *from) {
  return to != from && !(to->backend->host_accessible && from->backend->host_accessible);
}
mpg_status mpg_device_copy(mpg_device *running, mpg_device *to, void *target, mpg_device *from,
                           const void *source, size_t size);

/* Returns `size` bytes of scratch memory for the running kernel, 64-byte aligned and uninitialized.
 * The memory is valid until the kernel returns or requests the same slot again. Each slot has one
 * buffer, which grows if necessary and is counted in the statistics of the device's pool. Returns
 * NULL and sets the error if memory is exhausted or scratch must not grow (scratch_stays). Called
 * by the thread that runs the device's work (its worker, or the host inline). Most kernels and
 * library wrappers use MPG_SCRATCH_LIBRARY. A kernel that holds scratch while it calls helpers of
 * other kernels uses a later slot, so that the helpers do not overwrite it. For example, a
 * recurrent layer calls matrix products. */
typedef enum mpg_scratch_slot {
  MPG_SCRATCH_LIBRARY,
  MPG_SCRATCH_KERNEL,
  MPG_SCRATCH_WIDENED, /* float copies of 16-bit arrays */
  MPG_SCRATCH_SLOTS
} mpg_scratch_slot;
void *mpg_device_scratch_slot(mpg_device *device, mpg_scratch_slot slot, size_t size);
static inline void *mpg_device_scratch(mpg_device *device, size_t size) {
  return mpg_device_scratch_slot(device, MPG_SCRATCH_LIBRARY, size);
}

/* Records the op and scope that the running work executes next, for the watchdog. */
static inline void mpg_run_at(const mpg_run *run, const char *name, uint32_t scope) {
  atomic_store_explicit(&run->device->at.name, name, memory_order_relaxed);
  atomic_store_explicit(&run->device->at.scope, scope, memory_order_relaxed);
}

/* queue_status.c: the state of a device's queue. Call with the host lock held. */
typedef struct mpg_queue_status {
  mpg_tick completed, submitted; /* equal if the queue is empty */
  /* The running submission; NULL if it is no longer recorded. Valid until the next submission. */
  const mpg_submitted *work;
  const char *op; /* the op that `work` runs; NULL if unknown */
  uint32_t scope;
  mpg_device *peer; /* the device that `work` waits for; NULL if not waiting */
  mpg_tick tick;
  /* the submission that completes `tick` on `peer`; NULL if unknown */
  const mpg_submitted *peer_work;
} mpg_queue_status;
mpg_queue_status mpg_device_queue_status(const mpg_device *device);
/* For tests: queues work that blocks for `ms` milliseconds, or until the file descriptor `until` is
 * readable or at its end. `until` may be -1. */
mpg_status mpg_device_stall(mpg_device *device, int32_t ms, int until);

/* Execution mode. Set by the environment (MPGLUON_ENGINE=async|sync|shuffle, or MXNet's
 * MXNET_ENGINE_TYPE=NaiveEngine for sync), or by mpg_engine_set_mode, which first waits for all
 * work. `shuffle` selects a mock backend for tests: work runs only when a thread waits, in a
 * pseudorandom order that `seed` determines. The order respects the points. */
typedef enum mpg_engine_mode {
  MPG_ENGINE_ASYNC,
  MPG_ENGINE_SYNC,
  MPG_ENGINE_SHUFFLE
} mpg_engine_mode;
mpg_status mpg_engine_set_mode(mpg_engine_mode mode, uint64_t seed);
mpg_engine_mode mpg_engine_get_mode(void);
/* In shuffle mode, runs all tasks whose points are reached. No effect in other modes. Called
 * without the host lock. */
void mpg_engine_run_ready(void);

/* Interning of block paths. mpg_scope_intern returns the number of a path, and mpg_scope_text
 * returns the path for a number and may be called from any thread. */
uint32_t mpg_scope_intern(const char *path); /* Returns 0 if out of memory. */
const char *mpg_scope_text(uint32_t scope);  /* Returns "" for 0. */

/* Reads the settings from the environment and registers fork and exit handlers. Starts no threads.
 * Called once by the host after mpg_host_set. */
mpg_status mpg_device_init(void);
/* Stops the workers once their running work has finished, and discards the queued work.
 * Idempotent. */
void mpg_device_shutdown(void);

#endif
