/* Devices: a queue of work and a memory each, behind one backend interface.
 *
 * Timeline. A device counts the work submitted to it (`submitted`) and the work done (`completed`);
 * both only grow. A point (device, tick) is reached when completed >= tick. Work on one device runs
 * in submission order; work that depends on another device carries the points it must wait for.
 *
 * Lock-free hand-over. Submission happens under the host lock (base/host.h), so there is one
 * producer per queue; the worker is the one consumer. `completed` is stored with release order
 * after everything the work did, device scratch included, so a thread that holds the host lock and
 * sees completed == submitted owns the whole device until it submits: that is what inline execution
 * is.
 *
 * Failures. Work that fails leaves a failure record for its ticks; work whose data points lie on a
 * failed tick fails too, without running. A failure surfaces where a value is waited for. The
 * device goes on.
 *
 * Ownership: the device table owns the devices; they live until the process ends. Threads: host
 * lock, unless said otherwise.
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

typedef struct mpg_device_id { /* MXNet's numbering; what `Context` holds */
  int32_t type;
  int32_t index;
  int32_t rank; /* 1 + the rank of the process that it belongs to (ranks/ranks.h); 0: this one's
                   own */
} mpg_device_id;

/* "cpu(0)", "cpu(0, rank=1)" */
typedef struct mpg_device_id_name {
  char text[48];
} mpg_device_id_name;
mpg_device_id_name mpg_device_id_text(mpg_device_id id);
static inline bool mpg_device_id_equal(mpg_device_id a, mpg_device_id b) {
  return a.type == b.type && a.index == b.index && a.rank == b.rank;
}
const char *mpg_device_type_name(int32_t type); /* "cpu"; NULL: there is no such type for users */
/* One device at *text, which moves behind it; "cpu" is "cpu(0)". False: none is there. */
bool mpg_device_id_parse(const char **text, mpg_device_id *id);

typedef struct mpg_point {
  mpg_device *device;
  mpg_tick tick;
  bool data; /* this work reads data written at the point, so it fails if that work failed */
} mpg_point;

/* The context of running work. Lives on the worker's stack. */
typedef struct mpg_run {
  mpg_device *device;
  int num_threads;             /* threads this work may use */
  mpg_tick first_tick;         /* the first of the work's ticks */
  mpg_tick last_tick;          /* the last of them; reached when the work returns */
  mpg_point blocked_on;        /* set by mpg_run_wait when it returned false */
  void *stream;                /* the backend's own (a CUDA stream); NULL on CPU devices */
  uint32_t stage, micro_batch; /* the submission's */
} mpg_run;

/* Work: a function and a payload that is copied into the queue. It may suspend itself: when
 * mpg_run_wait says false it keeps its state in the payload and returns MPG_OK; it is called again,
 * with the same payload, once the point is reached.
 */
typedef mpg_status (*mpg_work_fn)(mpg_run *run, void *payload);

typedef struct mpg_submission {
  const char *name; /* for the profiler and error texts; static or as long-lived as the process */
  mpg_work_fn work;
  const void *payload; /* borrowed for the call; copied */
  size_t payload_size;
  const mpg_point *points; /* borrowed for the call; copied */
  int num_points;
  mpg_tick ticks;              /* how many ticks the work takes up; 0 means 1 */
  uint32_t origin;             /* the host line that queued it; 0: not known */
  uint32_t scope;              /* number of the block path (mpg_scope_text); 0: none */
  uint32_t stage, micro_batch; /* of a pipeline: 1 + the number; 0: none */
  uint64_t steps; /* of loops: 1 + the step of the innermost one, above it (<< 32) that of the one
                     around it; 0: none */
  void (*discard)(
      void *payload); /* optional; called exactly once per submission when the payload is done with:
                         after the work returned for the last time, failed, or will never run; also
                         when submitting it fails. Worker thread or host. */
} mpg_submission;

/* Figures of a device's memory, in bytes. */
typedef struct mpg_memory_stats {
  size_t in_use;      /* handed out to storages, frames and scratch */
  size_t peak_in_use; /* largest in_use since the start or the last reset */
  size_t held;        /* taken from the system: in use or cached */
  size_t peak_held;
  size_t limit;                /* 0: none */
  uint64_t allocations;        /* calls served */
  uint64_t system_allocations; /* of these, by asking the system */
} mpg_memory_stats;

/* Memory shared with other libraries that use the same hardware, on streams of their own. */
typedef struct mpg_sharing {
  int (*card)(mpg_device *device); /* the number of the hardware, as all libraries count it */
  /* A producer's work that is put before the end of this stream comes before our work that is
   * queued after `received`. */
  void *(*stream)(mpg_device *device);
  mpg_status (*received)(mpg_device *device);
  mpg_status (*arrived)(
      mpg_device *device); /* blocks until what copy_from_host has read is there */
  /* What others have put onto their default stream comes before our work that is queued now. */
  mpg_status (*follow_default)(mpg_device *device);
  mpg_status (*settle)(mpg_device *device); /* blocks until all work of the hardware is done */
} mpg_sharing;

/* A backend. Every slot is required unless it says otherwise. */
typedef struct mpg_backend {
  const char *name; /* "cpu" */
  mpg_status (*open)(
      mpg_device *device); /* fills device->backend_state; starts nothing that a fork would lose */
  void (*stop)(mpg_device *device);  /* at exit, for every device first: asks to stop after the
                                        running work */
  void (*close)(mpg_device *device); /* then: waits until it has stopped; discards the rest, which
                                        counts as failed */
  mpg_status (*allocate)(mpg_device *device, size_t size,
                         void **memory); /* 64-byte aligned; raw, below the pool */
  void (*free)(mpg_device *device, void *memory, size_t size);
  /* Optional. Returns memory that the driver has cached since `free` to the system. Waits for work
   * that was issued before those calls of `free`. Any thread. */
  void (*trim)(mpg_device *device);
  /* Submission in two steps, so that several devices take work together or not at all. enqueue
   * copies the work and starts nothing. publish (cannot fail) lets all enqueued work run. wake
   * (optional) is called after publish if a thread may sleep. retract forgets work that was
   * enqueued and not published, without discarding payloads. */
  mpg_status (*enqueue)(mpg_device *device, const mpg_submission *submission, mpg_tick first_tick);
  void (*publish)(mpg_device *device);
  void (*wake)(mpg_device *device);
  void (*retract)(mpg_device *device);
  /* Blocks until `tick` is completed or `timeout_ns` passed; host lock NOT held. True when reached.
   */
  bool (*wait)(mpg_device *device, mpg_tick tick, int64_t timeout_ns);
  void (*fork_prepare)(mpg_device *device); /* queues are drained; takes its locks */
  void (*fork_done)(mpg_device *device,
                    bool child); /* gives them back; in the child the device's threads are gone */
  /* Called by running work. See mpg_run_wait and mpg_run_signal. */
  bool (*run_wait)(mpg_run *run, mpg_point point);
  void (*run_signal)(mpg_run *run, mpg_tick tick);
  /* Blocking copies between device and host memory; the caller has waited for the storage's points.
   */
  mpg_status (*copy_to_host)(mpg_device *device, void *host, const void *memory, size_t size);
  mpg_status (*copy_from_host)(mpg_device *device, void *memory, const void *host, size_t size);
  /* Optional: mpg_device_copy in the order of the running work of this device. NULL: its work runs
   * on the host. */
  mpg_status (*run_copy)(mpg_device *device, mpg_device *to, void *target, mpg_device *from,
                         const void *source, size_t size);
  /* Where memory is not host_accessible: the same, into memory of the host, and blocks until it is
   * there. Fails, too, if a check that the work depends on has failed. */
  mpg_status (*run_copy_to_host)(mpg_device *device, void *host, const void *source, size_t size);
  /* Optional: what the hardware has, all devices that share it together. */
  mpg_status (*memory)(mpg_device *device, size_t *free_bytes, size_t *total);
  /* Optional: the latest tick whose work has been done, or put in order, however it ends; NULL: the
   * latest completed one. */
  mpg_tick (*issued)(mpg_device *device);
  /* Optional: running work has failed, and the error text says how; if that is because the device
   * itself is lost, it says so from then on. */
  void (*work_failed)(mpg_device *device, mpg_status status);
  /* Optional: running work, whose stream has passed all that it needs, is about to wait for others
   * that may come behind a wait of the host: what was done before becomes known. Fails if a check
   * that the work depends on has failed meanwhile: then nobody is to get its data. */
  mpg_status (*work_waits)(mpg_device *device);
  /* Optional: captures, work issued once and then again as one (gpu.h says how); by running work,
   * the last by any thread. */
  mpg_status (*capture_begin)(mpg_device *device, void **stream);
  bool (*capture_void)(mpg_device *device);
  mpg_status (*capture_end)(mpg_device *device, bool keep, void **capture);
  mpg_status (*capture_run)(mpg_device *device, void *capture);
  void (*capture_free)(mpg_device *device, void *capture);
  /* With captures: writes the first `count` of mpg_device.keys, in the order of the running work;
   * `keys` may go at once. The first call makes them; count 0: that alone. */
  mpg_status (*capture_keys)(mpg_device *device, const mpg_random_key *keys, int count);
  /* Optional: running work waits until its device has done everything issued before. */
  void (*drain)(mpg_device *device);
  /* Optional: records the failures that the device itself has reported (mpg_device.raised). Any
   * thread. */
  void (*collect)(mpg_device *device);
  const mpg_sharing *sharing; /* NULL: only the host shares its memory */
  bool host_accessible;       /* its memory can be read and written by the host directly */
  bool runs_inline;           /* small work may run in the submitting thread on an idle device */
} mpg_backend;

enum { MPG_CAPTURE_KEYS = 64 }; /* random keys that a capture may have */

/* The record of a submission by which the status of the queue is told. */
typedef struct mpg_submitted {
  mpg_tick last;
  const char *name;
  uint32_t origin, scope, stage, micro_batch;
  int64_t queued_ns; /* monotonic clock: when the worker could see it; 0: the profiler was off */
} mpg_submitted;
/* The latest submission; NULL: none yet. */
const mpg_submitted *mpg_device_latest(const mpg_device *device);

struct mpg_device {
  mpg_device_id id;
  int32_t ordinal;   /* position in the device table */
  mpg_device *older; /* the device opened before this one; NULL if this is the first. Any thread */
  const mpg_backend *backend;
  void *backend_state;
  void *stream;         /* the backend's; NULL on CPU devices */
  bool remote;          /* of another process: no memory, and no kernel runs (ranks/ranks.h) */
  bool captures;        /* its backend does, and it is not turned off */
  mpg_random_key *keys; /* MPG_CAPTURE_KEYS in the device's own memory, which captured work reads
                           when it runs; NULL: none yet. Running work */
  _Atomic(mpg_tick) *completed; /* any thread reads; the backend writes: `own_completed`, or where
                                   its hardware can write it */
  mpg_tick submitted;           /* host lock */
  _Atomic(bool) failed;         /* some work has failed: look failures up */
  _Atomic(int) num_threads;     /* what work on it may use now; CPU devices */
  mpg_pool *pool;
  struct {
    void *memory;
    size_t size;
  } scratch[3]; /* by mpg_scratch_slot */
  bool
      scratch_stays; /* running work: it may not be outgrown now, as addresses are being captured */
  void *kernel_cache;                     /* the kernels' own prepared primitives for this device */
  void (*kernel_cache_free)(void *cache); /* called when the device is closed */
  struct mpg_failures *failures;          /* see mpg_device_fail */
  _Atomic(uint32_t) *raised;       /* the device sets it before `completed`, when it has failures to
                                      report; NULL: it does not */
  struct mpg_event_buffer *events; /* the profiler's */
  mpg_submitted *recent;           /* the latest submissions, a ring; host lock */
  uint64_t submissions;
  mpg_device_id_name name; /* of `id`, made once */
  /* The progress of the running work, for the watchdog; written by the worker, relaxed. */
  struct {
    _Atomic(const char *)
        name; /* the instruction's op, as long-lived as the process; NULL: not said */
    _Atomic(uint32_t) scope;
    _Atomic(int32_t) peer;  /* 1 + ordinal of the device it waits for; 0: it does not wait */
    _Atomic(mpg_tick) tick; /* that it waits for */
    _Atomic(bool) meeting;  /* it waits for others of its kind (meeting.h) */
    _Atomic(int) core;      /* 1 + the core that its worker was last seen on; 0: none */
  } at;
  _Alignas(64) _Atomic(mpg_tick) own_completed; /* on a separate cache line */
};

/* Whether work on it has failed, or it has reports of such that nobody has looked at yet. They come
 * before the ticks of the work; and what is known already is asked for last, since reports become
 * that. Any thread. */
static inline bool mpg_device_has_failed(const mpg_device *device) {
  return (device->raised && atomic_load_explicit(device->raised, memory_order_acquire)) ||
         atomic_load_explicit(&device->failed, memory_order_acquire);
}

/* The device of that type and index, opened on first use. Borrowed. MPG_ERROR says why there is
 * none. Pinned and shared memory of the CPU are cpu(index) itself. */
mpg_status mpg_device_get(mpg_device_id id, mpg_device **device);
/* A second queue over a device's memory, of one thread, for work that goes on beside what the
 * device itself does: it reads and writes the device's arrays as another device's work would.
 * Opened on first use. NULL: the backend has none. */
mpg_status mpg_device_side(mpg_device *device, mpg_device **side);
int mpg_device_count(void); /* opened so far */
mpg_device *mpg_device_at(int ordinal);
/* The device opened last; NULL if none is open. With `older` it enumerates all devices. Any thread.
 */
mpg_device *mpg_device_newest(void);
/* MPG_OK if these devices can take part in collectives as single ops, that is through NCCL: GPUs on
 * cards of their own, and the library is there. Else why not. Host lock. */
mpg_status mpg_gpu_collectives(const mpg_device_id *ids, int count);
int mpg_gpu_count(const char **reason); /* GPUs that could be opened; 0: *reason (static) says why;
                                           NULL: it is not asked for */
/* NVIDIA's library of that number (base/library.h); NULL: none of it, or no GPU. Host lock. */
const struct mpg_library *mpg_gpu_vendor_library(int number);
mpg_status mpg_device_memory(mpg_device *device, size_t *free_bytes,
                             size_t *total); /* of a GPU; a limit counts as its size */
static inline const char *mpg_device_text(const mpg_device *device) { return device->name.text; }

/* Threads per CPU device: n >= 1 fixes it for all; 0 shares the machine's cores out among the CPU
 * devices opened. */
mpg_status mpg_device_set_threads(int n);
int mpg_machine_cores(void); /* cores this process may run on */

/* Queuing. All work is queued by mpg_device_queue, which keeps pieces of work whole towards each
 * other: from collecting what the work must wait for until all its uses are noted, nobody else
 * runs, no other thread of the host and no finalizer. In order: waits while very much is queued
 * (host lock given up; may be interrupted); `prepare`, which looks at the storages, collects points
 * (in an empty list) and fills in a submission per device; queues all or none, and no other
 * submission comes between, so programs that wait for each other cannot deadlock; `note`, which
 * tells the storages; and only then anything that may wait, as synchronous mode does. Neither
 * function may let others in (base/host.h counts turns); a mistake there ends the process in debug
 * builds and in tests. What lets others in comes before: making storages, asking for the host's
 * line. In `prepare` the first tick of submission i is mpg_device_next_tick(devices[i]), so
 * payloads can name each other's ticks; a device may come more than once, its submissions one
 * behind the other. If it fails, nothing has been queued and payloads are the caller's; later
 * failures discard them. *done: it has done the work itself, and noted it: nothing is to be queued.
 * `note` gets the last tick of each submission. In synchronous mode the work is done on return and
 * its failure is the result. */
enum { MPG_MOST_TOGETHER = 72 };
typedef struct mpg_point_list { /* work space: one for all, as no other thread prepares meanwhile */
  mpg_point *points;
  size_t capacity;
  int begin, count; /* those from `begin` on are the next submission's */
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
/* The caller, holding the host lock, may run work of this device itself until it next submits or
 * gives the lock up. */
static inline bool mpg_device_idle(const mpg_device *device) {
  return mpg_tick_reached(device, device->submitted);
}
static inline bool mpg_device_runs_inline(const mpg_device *device) {
  return device->backend->runs_inline && mpg_device_idle(device);
}

/* Waits for a point and checks for interrupts. Releases the host lock while it blocks, or keeps it,
 * so that no other thread queues work meanwhile (signal handlers may). Fails with the point's
 * failure if point.data, or with MPG_INTERRUPTED. */
mpg_status mpg_point_wait(mpg_point point, bool keep_lock);
/* Waits for everything submitted to all devices; reports the first failure not reported before. */
mpg_status mpg_wait_all(void);

/* The failure recorded for a tick: sets this thread's error text and returns the status, or MPG_OK.
 * Host lock, where the text tells the line that queued the work; or running work, which returns the
 * status to pass the failure on. */
mpg_status mpg_device_failure(mpg_device *device, mpg_tick tick);
/* Records this thread's present error text as the failure of the ticks first..last. Any thread;
 * backends call it before they store `completed`. */
void mpg_device_fail(mpg_device *device, mpg_tick first, mpg_tick last, mpg_status status,
                     const mpg_submission *submission);

/* For running work only. mpg_run_wait: true when the point is reached (or the backend has ordered
 * it by other means); false: return MPG_OK from the work at once and expect to be called again.
 * mpg_run_signal: everything the work did so far is visible to threads that wait for `tick`
 * (first_tick <= tick < last_tick, growing). */
static inline bool mpg_run_wait(mpg_run *run, mpg_point point) {
  return mpg_tick_reached(point.device, point.tick) || run->device->backend->run_wait(run, point);
}
static inline void mpg_run_signal(mpg_run *run, mpg_tick tick) {
  run->device->backend->run_signal(run, tick);
}

/* For running work: whether a copy between the two devices' memories is the devices' business, and
 * not a kernel's on the host; and that copy, in the order of the work of `running`, which is one of
 * the two. The work has waited for whatever uses the memory. */
static inline bool mpg_device_copies(const mpg_device *to, const mpg_device *from) {
  return to != from && !(to->backend->host_accessible && from->backend->host_accessible);
}
mpg_status mpg_device_copy(mpg_device *running, mpg_device *to, void *target, mpg_device *from,
                           const void *source, size_t size);

/* Scratch memory of the running kernel, `size` bytes, 64-byte aligned, contents undefined; valid
 * until the kernel returns or asks for the same slot again. Grows the slot's one buffer, which
 * counts in the device's pool. NULL: out of memory, or it may not grow (scratch_stays), error set.
 * Called by the thread that runs the device's work (its worker, or the host inline). Most kernels
 * and the library wrappers they call use MPG_SCRATCH_LIBRARY; a kernel that keeps scratch while it
 * calls others' helpers (a recurrent layer around its products) takes a slot further out. */
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

/* Running work calls this to say what it does next. */
static inline void mpg_run_at(const mpg_run *run, const char *name, uint32_t scope) {
  atomic_store_explicit(&run->device->at.name, name, memory_order_relaxed);
  atomic_store_explicit(&run->device->at.scope, scope, memory_order_relaxed);
}

/* queue_status.c: where a device's queue stands. Host lock. */
typedef struct mpg_queue_status {
  mpg_tick completed, submitted; /* the same: it has nothing to do */
  const mpg_submitted *work; /* the submission it is at; NULL: too far back to be known. Valid until
                                the next submission. */
  const char *op;            /* and in it; NULL: not known */
  uint32_t scope;
  mpg_device *peer; /* the device that it waits for; NULL: none */
  mpg_tick tick;
  const mpg_submitted *peer_work; /* the work that reaches that tick; NULL: none */
} mpg_queue_status;
mpg_queue_status mpg_device_queue_status(const mpg_device *device);
/* Queues work that does nothing for that long, or until a file descriptor (-1: none) can be read or
 * is at its end; for tests. */
mpg_status mpg_device_stall(mpg_device *device, int32_t ms, int until);

/* Execution mode. Set before the first device is opened (environment
 * MPGLUON_ENGINE=async|sync|shuffle, and MXNet's MXNET_ENGINE_TYPE=NaiveEngine for sync) or by this
 * call, which waits for all work first. `shuffle` is the mock backend: nothing runs until a thread
 * waits, then in a random order that the points allow, drawn from `seed`. */
typedef enum mpg_engine_mode {
  MPG_ENGINE_ASYNC,
  MPG_ENGINE_SYNC,
  MPG_ENGINE_SHUFFLE
} mpg_engine_mode;
mpg_status mpg_engine_set_mode(mpg_engine_mode mode, uint64_t seed);
mpg_engine_mode mpg_engine_get_mode(void);

/* Block paths: interned text <-> number. */
uint32_t mpg_scope_intern(const char *path); /* 0 when out of memory */
const char *mpg_scope_text(uint32_t scope);  /* "" for 0. Any thread. */

/* Reads the settings from the environment, starts nothing, registers fork and exit handlers. Called
 * once by the host after mpg_host_set. */
mpg_status mpg_device_init(void);
void mpg_device_shutdown(
    void); /* stops workers after their running work, discards the rest; idempotent */

#endif
