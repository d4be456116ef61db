/* Devices. Each has a work queue and a memory pool, and implements a common backend interface.
 *
 * Timeline. A device counts the work submitted to it (`submitted`) and the work done (`completed`).
 * Both counts are monotonic. A point (device, tick) is reached when completed >= tick. Work on one
 * device runs in submission order. Work that depends on another device carries the points that it
 * must wait for.
 *
 * Lock-free hand-over. Submission happens under the host lock (base/host.h), so each queue has one
 * producer and one consumer, the worker. `completed` is stored with release order after all effects
 * of the work, including its use of device scratch. So a thread that holds the host lock and sees
 * completed == submitted owns the whole device until it submits work. Inline execution relies on
 * this.
 *
 * Failures. Failed work leaves a failure record for its ticks. Work whose data points are failed
 * ticks fails as well, without running. A wait for a value reports the failure of its work. The
 * device continues to run other work.
 *
 * Ownership: the device table owns the devices, which live until the process ends. Threads: host
 * lock, unless stated otherwise.
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
  MPG_CPU_SIDE = 6 /* see mpg_device_side */
} mpg_device_type;

typedef struct mpg_device_id { /* MXNet's numbering; the content of a `Context` */
  int32_t type;
  int32_t index;
  /* 1 + the rank of the process that owns the device (ranks/ranks.h); 0 means this process. */
  int32_t rank;
} mpg_device_id;

/* "cpu(0)", "cpu(0, rank=1)" */
typedef struct mpg_device_id_name {
  char text[48];
} mpg_device_id_name;
mpg_device_id_name mpg_device_id_text(mpg_device_id id);
static inline bool mpg_device_id_equal(mpg_device_id a, mpg_device_id b) {
  return a.type == b.type && a.index == b.index && a.rank == b.rank;
}
/* Returns the name of a type, such as "cpu"; NULL if users cannot name the type. */
const char *mpg_device_type_name(int32_t type);
/* Parses one device at *text and advances *text past it; "cpu" is "cpu(0)". Returns false if *text
 * does not start with a device. */
bool mpg_device_id_parse(const char **text, mpg_device_id *id);

typedef struct mpg_point {
  mpg_device *device;
  mpg_tick tick;
  bool data; /* the work reads data written at the point, so it fails if that work failed */
} mpg_point;

/* The context of running work, on the worker's stack. */
typedef struct mpg_run {
  mpg_device *device;
  int num_threads;             /* threads this work may use */
  mpg_tick first_tick;         /* first tick of the work */
  mpg_tick last_tick;          /* its last tick; reached when the work returns */
  mpg_point blocked_on;        /* set by mpg_run_wait when it returns false */
  void *stream;                /* the backend's stream (a CUDA stream); NULL on CPU devices */
  uint32_t stage, micro_batch; /* copied from the submission */
} mpg_run;

/* Work: a function and a payload, which is copied into the queue. The function may suspend itself.
 * If mpg_run_wait returns false, it keeps its state in the payload and returns MPG_OK. It is called
 * again with the same payload once the point is reached. */
typedef mpg_status (*mpg_work_fn)(mpg_run *run, void *payload);

typedef struct mpg_submission {
  const char *name; /* for the profiler and error texts; static or as long-lived as the process */
  mpg_work_fn work;
  const void *payload; /* borrowed for the call; copied */
  size_t payload_size;
  const mpg_point *points; /* borrowed for the call; copied */
  int num_points;
  mpg_tick ticks;              /* number of ticks of the work; 0 means 1 */
  uint32_t origin;             /* the host's source line that queued it; 0 means unknown */
  uint32_t scope;              /* block path (mpg_scope_text); 0 means none */
  uint32_t stage, micro_batch; /* pipelines only: 1 + the index; 0 means none */
  /* Loop position: 1 + the step of the innermost loop in the low 32 bits, and of the loop around it
   * in the high 32 bits. 0 means none. */
  uint64_t steps;
  /* Optional. The worker or the host calls it exactly once per submission when the payload is no
   * longer needed. This is after the last return of the work, after a failure, when the work will
   * never run, or when submission fails. */
  void (*discard)(void *payload);
} mpg_submission;

/* Memory statistics of a device, in bytes. */
typedef struct mpg_memory_stats {
  size_t in_use;      /* handed out to storages, frames and scratch */
  size_t peak_in_use; /* largest in_use since the start or the last reset */
  size_t held;        /* taken from the system, in use or cached */
  size_t peak_held;
  size_t limit;                /* 0 means none */
  uint64_t allocations;        /* successful calls of mpg_pool_alloc */
  uint64_t system_allocations; /* allocations from the system */
} mpg_memory_stats;

/* Memory sharing with other libraries that use the same hardware on their own streams. */
typedef struct mpg_sharing {
  int (*card)(mpg_device *device); /* device index of the hardware, as all libraries number it */
  /* Returns a stream. A producer's work that is ordered before the end of this stream runs before
   * our work that is queued after `received`. */
  void *(*stream)(mpg_device *device);
  mpg_status (*received)(mpg_device *device);
  /* Blocks until copy_from_host has written all its data. */
  mpg_status (*arrived)(mpg_device *device);
  /* Orders work that we queue after this call after the other libraries' work on the default
   * stream. */
  mpg_status (*follow_default)(mpg_device *device);
  mpg_status (*settle)(mpg_device *device); /* blocks until the hardware has finished all work */
} mpg_sharing;

/* A backend. Every slot is required unless marked optional. */
typedef struct mpg_backend {
  const char *name; /* "cpu" */
  /* Fills device->backend_state; must not start threads, which a fork would lose. */
  mpg_status (*open)(mpg_device *device);
  /* Called at exit, for all devices before the first `close`. Asks the worker to stop after the
   * running work. */
  void (*stop)(mpg_device *device);
  /* Called at exit, after `stop`. Waits until the worker has stopped, and discards the remaining
   * work as failed. */
  void (*close)(mpg_device *device);
  /* 64-byte aligned; system memory, below the pool. */
  mpg_status (*allocate)(mpg_device *device, size_t size, void **memory);
  void (*free)(mpg_device *device, void *memory, size_t size);
  /* Optional. Returns memory to the system that the driver cached at earlier calls of `free`. Waits
   * for work that was issued before those calls. Any thread. */
  void (*trim)(mpg_device *device);
  /* Two-phase submission, so that several devices accept work all together or not at all. enqueue
   * copies the work and starts nothing. publish, which cannot fail, lets all enqueued work run.
   * wake (optional) is called after publish if a thread may sleep. retract removes work that was
   * enqueued and not published, without discarding payloads. */
  mpg_status (*enqueue)(mpg_device *device, const mpg_submission *submission, mpg_tick first_tick);
  void (*publish)(mpg_device *device);
  void (*wake)(mpg_device *device);
  void (*retract)(mpg_device *device);
  /* Blocks until `tick` is completed or `timeout_ns` has passed. Returns true if it is completed.
   * The host lock must NOT be held. */
  bool (*wait)(mpg_device *device, mpg_tick tick, int64_t timeout_ns);
  /* Called with drained queues; takes the backend's locks. */
  void (*fork_prepare)(mpg_device *device);
  /* Releases them; in the child, the device's threads do not exist. */
  void (*fork_done)(mpg_device *device, bool child);
  /* Called by running work. See mpg_run_wait and mpg_run_signal. */
  bool (*run_wait)(mpg_run *run, mpg_point point);
  void (*run_signal)(mpg_run *run, mpg_tick tick);
  /* Blocking copies between device and host memory. The caller has waited for the storage's
   * points. */
  mpg_status (*copy_to_host)(mpg_device *device, void *host, const void *memory, size_t size);
  mpg_status (*copy_from_host)(mpg_device *device, void *memory, const void *host, size_t size);
  /* Optional: mpg_device_copy in the order of the device's running work. NULL if the device's work
   * runs on the host. */
  mpg_status (*run_copy)(mpg_device *device, mpg_device *to, void *target, mpg_device *from,
                         const void *source, size_t size);
  /* Copies to host memory and blocks until the data has arrived. Required if memory is not
   * host_accessible. Also fails if a check that the work depends on has failed. */
  mpg_status (*run_copy_to_host)(mpg_device *device, void *host, const void *source, size_t size);
  /* Optional: memory of the hardware, shared by all devices on it. */
  mpg_status (*memory)(mpg_device *device, size_t *free_bytes, size_t *total);
  /* Optional: the latest tick whose work is done or ordered, even if it fails later. NULL means the
   * latest completed tick. */
  mpg_tick (*issued)(mpg_device *device);
  /* Optional: reports that running work has failed, with its error text. If the device itself is
   * lost, the backend reports so from then on. */
  void (*work_failed)(mpg_device *device, mpg_status status);
  /* Optional; called when running work is about to block, possibly until the host queues more work.
   * Its stream has passed everything that the work needs. Publishes the progress so far. Fails if a
   * check that the work depends on has failed, because then its data must not be passed on. */
  mpg_status (*work_waits)(mpg_device *device);
  /* Optional: captures, which issue recorded work again as a unit (see gpu.h). Called by running
   * work, except capture_free (any thread). */
  mpg_status (*capture_begin)(mpg_device *device, void **stream);
  bool (*capture_void)(mpg_device *device);
  mpg_status (*capture_end)(mpg_device *device, bool keep, void **capture);
  mpg_status (*capture_run)(mpg_device *device, void *capture);
  void (*capture_free)(mpg_device *device, void *capture);
  /* Required with captures: writes the first `count` of mpg_device.keys in the order of the running
   * work, and copies `keys` before it returns. The first call allocates them; count 0 does only
   * that. */
  mpg_status (*capture_keys)(mpg_device *device, const mpg_random_key *keys, int count);
  /* Optional: blocks running work until its device has done everything issued before. */
  void (*drain)(mpg_device *device);
  /* Optional: records the failures that the device itself has reported (mpg_device.raised). Any
   * thread. */
  void (*collect)(mpg_device *device);
  const mpg_sharing *sharing; /* NULL means that only the host shares its memory */
  bool host_accessible;       /* the host can read and write its memory directly */
  bool runs_in_wait;          /* only `wait` makes progress, so waiting threads must not spin */
  bool runs_inline;           /* small work may run in the submitting thread on an idle device */
} mpg_backend;

enum { MPG_CAPTURE_KEYS = 64 }; /* most random keys per capture */

/* The record of a submission, for queue status. */
typedef struct mpg_submitted {
  mpg_tick last;
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  int64_t queued_ns; /* monotonic clock, when published; 0 means the profiler was off */
} mpg_submitted;
/* Returns the latest submission; NULL before the first one. */
const mpg_submitted *mpg_device_latest(const mpg_device *device);

struct mpg_device {
  mpg_device_id id;
  int32_t ordinal;   /* position in the device table */
  mpg_device *older; /* the device opened before this one; NULL for the first. Any thread */
  const mpg_backend *backend;
  void *backend_state;
  void *stream;  /* owned by the backend; NULL on CPU devices */
  bool remote;   /* owned by another process, so without memory and kernels here (ranks/ranks.h) */
  bool captures; /* the backend supports captures, and they are enabled */
  /* MPG_CAPTURE_KEYS in the device's memory, read by captured work when it runs; NULL until the
   * first use. Running work. */
  mpg_random_key *keys;
  /* Written by the backend, read by any thread. Points to `own_completed`, or to memory that the
   * hardware can write. */
  _Atomic(mpg_tick) *completed;
  mpg_tick submitted;       /* host lock */
  _Atomic(bool) failed;     /* some work has failed; see failures */
  _Atomic(int) num_threads; /* threads that its work may use; CPU devices */
  mpg_pool *pool;
  struct {
    void *memory;
    size_t size;
  } scratch[3]; /* by mpg_scratch_slot */
  /* Scratch must not grow, because its addresses are being captured. Running work. */
  bool scratch_stays;
  void *kernel_cache; /* prepared primitives of the kernel libraries for this device */
  void (*kernel_cache_free)(void *cache); /* called when the device is closed */
  struct mpg_failures *failures;          /* see mpg_device_fail */
  /* Set by the device before `completed` when it has failures to report; NULL if the device reports
   * none. */
  _Atomic(uint32_t) *raised;
  struct mpg_event_buffer *events; /* profiler events */
  mpg_submitted *recent;           /* ring buffer of the latest submissions; host lock */
  uint64_t submissions;
  mpg_device_id_name name; /* text of `id` */
  /* Progress of the running work, for the watchdog. Written by the worker, relaxed. */
  struct {
    /* Op of the current instruction, as long-lived as the process; NULL if unknown. */
    _Atomic(const char *) name;
    _Atomic(uint32_t) scope;
    _Atomic(int32_t) peer;    /* 1 + ordinal of the device it waits for; 0 means not waiting */
    _Atomic(mpg_tick) tick;   /* the tick it waits for */
    _Atomic(bool) rendezvous; /* it waits at a rendezvous (rendezvous.h) */
    _Atomic(int) core;        /* 1 + the core its worker last ran on; 0 means unknown */
  } at;
  _Alignas(64) _Atomic(mpg_tick) own_completed; /* on a separate cache line */
};

/* True if work on the device has failed, or if the device has unread failure reports. A report is
 * raised before the ticks of its work complete. `failed` is read last, because another thread may
 * turn reports into recorded failures meanwhile. Any thread. */
static inline bool mpg_device_has_failed(const mpg_device *device) {
  return (device->raised && atomic_load_explicit(device->raised, memory_order_acquire)) ||
         atomic_load_explicit(&device->failed, memory_order_acquire);
}

/* Returns the device with that type and index, opened on first use. Borrowed. On MPG_ERROR, the
 * error text says why it is unavailable. Pinned and shared CPU memory are cpu(index) itself. */
mpg_status mpg_device_get(mpg_device_id id, mpg_device **device);
/* Returns a second queue over a device's memory, with one thread, for work that runs concurrently
 * with the device's own. It accesses the device's arrays like the work of another device. Opened on
 * first use. *side is NULL if the backend has none. */
mpg_status mpg_device_side(mpg_device *device, mpg_device **side);
int mpg_device_count(void); /* devices opened so far */
mpg_device *mpg_device_at(int ordinal);
/* Returns the device opened last; NULL if none is open. Together with `older`, enumerates all
 * devices. Any thread. */
mpg_device *mpg_device_newest(void);
/* Returns MPG_OK if these devices support collectives as single ops through NCCL: they are GPUs on
 * different cards, and the library is available. Otherwise the error says why not. Host lock. */
mpg_status mpg_gpu_collectives(const mpg_device_id *ids, int count);
/* Returns the number of usable GPUs. If it is 0, sets *reason (static); `reason` may be NULL. */
int mpg_gpu_count(const char **reason);
/* Returns a library of NVIDIA by number (base/library.h). NULL if the number is out of range or no
 * GPU is usable. Host lock. */
const struct mpg_library *mpg_gpu_vendor_library(int number);
/* Returns the free and total memory of a GPU. If a limit is set, it is the total. */
mpg_status mpg_device_memory(mpg_device *device, size_t *free_bytes, size_t *total);
/* Returns unused memory to the system: cached blocks, after waiting for queued work that still uses
 * them, scratch if the device is idle, and memory that its driver has cached. */
mpg_status mpg_device_trim(mpg_device *device);
static inline const char *mpg_device_text(const mpg_device *device) { return device->name.text; }

/* Sets the threads per CPU device: n >= 1 fixes it for all devices; 0 divides the machine's cores
 * among the open CPU devices. */
mpg_status mpg_device_set_threads(int n);
int mpg_machine_cores(void); /* cores this process may run on */

/* Queuing. All work is queued by mpg_device_queue, which makes the work of one call atomic with
 * respect to other calls. From collecting the points to recording the uses, no other host thread
 * and no finalizer runs.
 *
 * Steps, in order:
 * 1. Waits for room if the queue is nearly full. This releases the host lock and may be
 * interrupted.
 * 2. `prepare` reads the storages, collects points (into an empty list) and fills in one submission
 * per device.
 * 3. Queues all submissions or none. No other submission can interleave, so programs that wait for
 * each other cannot deadlock.
 * 4. `note` records the uses in the storages. It gets the last tick of each submission.
 * 5. Only then waits for the work if the mode is synchronous.
 *
 * Neither `prepare` nor `note` may release the host lock (base/host.h counts turns). A violation
 * aborts the process in debug builds and in tests. Callers allocate storages and look up the host's
 * source line before the call, as both may release the lock.
 *
 * In `prepare`, the first tick of submission i is mpg_device_next_tick(devices[i]), so payloads can
 * contain each other's ticks. A device may occur more than once; its submissions run in that order.
 * If `prepare` fails, nothing was queued and the caller keeps the payloads; later failures discard
 * them. If it sets *done, it has done and recorded the work itself, and nothing is queued. In
 * synchronous mode the work is done on return, and its failure is returned. */
enum { MPG_MOST_TOGETHER = 72 };
/* Work space that all calls share, as only one thread prepares at a time. */
typedef struct mpg_point_list {
  mpg_point *points;
  size_t capacity;
  int begin, count; /* points from `begin` on belong to the next submission */
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
/* True if the caller, holding the host lock, may run work of this device itself until it next
 * submits work or releases the lock. */
static inline bool mpg_device_idle(const mpg_device *device) {
  return mpg_tick_reached(device, device->submitted);
}
static inline bool mpg_device_runs_inline(const mpg_device *device) {
  return device->backend->runs_inline && mpg_device_idle(device);
}

/* Waits for a point and checks for interrupts. Releases the host lock while it blocks, unless
 * keep_lock. With keep_lock no other thread queues work meanwhile, but signal handlers may. Fails
 * with the point's failure if point.data, or with MPG_INTERRUPTED. */
mpg_status mpg_point_wait(mpg_point point, bool keep_lock);
/* Waits for all work submitted to all devices. Reports the first failure not reported before. */
mpg_status mpg_wait_all(void);

/* Looks up the failure of a tick. Sets this thread's error text and returns the status, or returns
 * MPG_OK. Called under the host lock, which adds the line that queued the work to the text, or by
 * running work, which returns the status to pass the failure on. */
mpg_status mpg_device_failure(mpg_device *device, mpg_tick tick);
/* Records this thread's current error text as the failure of the ticks first..last. Any thread;
 * backends call it before they store `completed`. */
void mpg_device_fail(mpg_device *device, mpg_tick first, mpg_tick last, mpg_status status,
                     const mpg_submission *submission);

/* For running work only. mpg_run_wait returns true if the point is reached or the backend has
 * ordered it by other means. If it returns false, the work must return MPG_OK at once and is called
 * again later. mpg_run_signal makes all effects of the work so far visible to threads that wait for
 * `tick` (first_tick <= tick < last_tick, increasing). */
static inline bool mpg_run_wait(mpg_run *run, mpg_point point) {
  return mpg_tick_reached(point.device, point.tick) || run->device->backend->run_wait(run, point);
}
static inline void mpg_run_signal(mpg_run *run, mpg_tick tick) {
  run->device->backend->run_signal(run, tick);
}

/* For running work. mpg_device_copies is true if a copy between the two memories needs a device
 * backend rather than a host kernel. mpg_device_copy does that copy in the order of the work of
 * `running`, which is one of the two. The work has already waited for all uses of the memory. */
static inline bool mpg_device_copies(const mpg_device *to, const mpg_device *from) {
  return to != from && !(to->backend->host_accessible && from->backend->host_accessible);
}
mpg_status mpg_device_copy(mpg_device *running, mpg_device *to, void *target, mpg_device *from,
                           const void *source, size_t size);

/* Returns `size` bytes of scratch memory for the running kernel, 64-byte aligned and uninitialized.
 * It is valid until the kernel returns or requests the same slot again. Grows the slot's single
 * buffer, which is counted in the device's pool. Returns NULL and sets the error if memory is
 * exhausted or scratch must not grow (scratch_stays). Called by the thread that runs the device's
 * work (its worker, or the host inline). Most kernels and library wrappers use MPG_SCRATCH_LIBRARY.
 * A kernel that holds scratch while it calls helpers of other kernels (a recurrent layer around its
 * matrix products) uses a later slot. */
typedef enum mpg_scratch_slot {
  MPG_SCRATCH_LIBRARY,
  MPG_SCRATCH_KERNEL,
  MPG_SCRATCH_WIDENED,
  MPG_SCRATCH_SLOTS
} mpg_scratch_slot;
void *mpg_device_scratch_slot(mpg_device *device, mpg_scratch_slot slot, size_t size);
static inline void *mpg_device_scratch(mpg_device *device, size_t size) {
  return mpg_device_scratch_slot(device, MPG_SCRATCH_LIBRARY, size);
}

/* Records the op and scope that the running work executes next. */
static inline void mpg_run_at(const mpg_run *run, const char *name, uint32_t scope) {
  atomic_store_explicit(&run->device->at.name, name, memory_order_relaxed);
  atomic_store_explicit(&run->device->at.scope, scope, memory_order_relaxed);
}

/* queue_status.c: the state of a device's queue. Host lock. */
typedef struct mpg_queue_status {
  mpg_tick completed, submitted; /* equal if the queue is empty */
  /* The running submission; NULL if it is no longer recorded. Valid until the next submission. */
  const mpg_submitted *work;
  const char *op; /* the op it runs; NULL if unknown */
  uint32_t scope;
  mpg_device *peer; /* the device it waits for; NULL means none */
  mpg_tick tick;
  const mpg_submitted *peer_work; /* the work that reaches that tick; NULL if unknown */
} mpg_queue_status;
mpg_queue_status mpg_device_queue_status(const mpg_device *device);
/* For tests: queues work that blocks for `ms` milliseconds, or until the file descriptor `until` is
 * readable or at its end. `until` may be -1. */
mpg_status mpg_device_stall(mpg_device *device, int32_t ms, int until);

/* Execution mode. Set before the first device is opened (environment
 * MPGLUON_ENGINE=async|sync|shuffle, or MXNet's MXNET_ENGINE_TYPE=NaiveEngine for sync) or by this
 * call, which first waits for all work. `shuffle` is the mock backend: work runs only when a thread
 * waits, in a random order that respects the points, drawn from `seed`. */
typedef enum mpg_engine_mode {
  MPG_ENGINE_ASYNC,
  MPG_ENGINE_SYNC,
  MPG_ENGINE_SHUFFLE
} mpg_engine_mode;
mpg_status mpg_engine_set_mode(mpg_engine_mode mode, uint64_t seed);
mpg_engine_mode mpg_engine_get_mode(void);
/* Runs the tasks that MPG_ENGINE_SHUFFLE holds back until a thread waits, unless they wait for
 * other work. No effect in other modes. Called without the host lock. */
void mpg_engine_run_ready(void);

/* Block paths: interned text and its number. */
uint32_t mpg_scope_intern(const char *path); /* Returns 0 if out of memory. */
const char *mpg_scope_text(uint32_t scope);  /* "" for 0. Any thread. */

/* Reads the settings from the environment and registers fork and exit handlers. Starts no threads.
 * Called once by the host after mpg_host_set. */
mpg_status mpg_device_init(void);
/* Stops the workers after their running work and discards the rest. Idempotent. */
void mpg_device_shutdown(void);

#endif
