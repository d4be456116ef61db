/* GPUs: what the core and the library of GPU kernels lend each other.
 *
 * The library (kernels/cuda) is opened when a GPU is first asked for. It brings a driver, the table
 * below, which knows streams, events and memory but neither tasks nor timelines; those are gpu.c's.
 * It sees the core through the services only, so that it links with nothing of the core's.
 *
 * A device's work is issued by its worker, in order, onto its one compute stream. A tick is
 * *issued* when all its work is on the stream, and completed when the stream has passed it: the
 * stream itself writes the number to host memory (mpg_device.completed). Between two GPUs a wait is
 * an event of one stream that the other waits for; the host does not wait. Between a GPU and a CPU
 * device it is the worker that waits.
 *
 * Ownership: library and driver live as long as the process; an mpg_gpu as long as its device.
 * Threads: any, unless said otherwise; functions that fail set the thread's error text.
 */
#ifndef MPG_DEVICE_GPU_GPU_H
#define MPG_DEVICE_GPU_GPU_H

#include "base/library.h"
#include "device/device.h"
#include "device/meeting.h"

typedef struct mpg_gpu mpg_gpu; /* the driver's state of one (logical) device */

/* What a card tells the host: the tick that its stream has passed, and device-side assertions,
 * errors that kernels find in their inputs. Host memory, which the card writes in the order of the
 * work: the report first, `raised` then, and `completed` behind the work. Pointers are the host's.
 * A forked child may not have it. */
enum { MPG_GPU_REPORTS = 64 };
typedef struct mpg_gpu_report {
  const char *format; /* for mpg_fail: of the op's name (%s) and four int64_t (%lld); as long-lived
                         as the library. NULL: nothing was wrong */
  const char *name;
  int64_t values[4];
  uint32_t scope; /* of the instruction; 0: none */
  int32_t status;
} mpg_gpu_report;
typedef struct mpg_gpu_reports {
  _Alignas(64) _Atomic(mpg_tick) completed;
  _Alignas(64) _Atomic(uint32_t) raised;
  mpg_gpu_report list[MPG_GPU_REPORTS];
} mpg_gpu_reports;

/* Services of the core for the library. */
typedef struct mpg_gpu_services {
  mpg_status (*fail)(mpg_status code, const char *format, va_list arguments);
  const char *(*error_text)(void);
  void *(*scratch)(mpg_device *device, mpg_scratch_slot slot, size_t size); /* running work */
  int (*folders)(const char *const **folders); /* where the host keeps libraries; borrowed */
  /* For running work: a kernel that it issues next may write *report, if that is still empty, and
   * then sets *raised. Waits while too many works have open checks. */
  mpg_status (*check)(mpg_device *device, mpg_gpu_report **report, _Atomic(uint32_t) **raised);
  /* As in meeting.h. */
  mpg_status (*meet)(const mpg_participant *participant, mpg_meeting **meeting, int *place);
  const void *(*meeting_data)(const mpg_meeting *meeting, int place);
  void (*meeting_leave)(mpg_meeting *meeting);
  /* Returns cached, unused memory of all pools on the card to the driver. Any thread. */
  void (*make_room)(int card);
} mpg_gpu_services;

/* Communicators over ranks: of each rank one GPU, each on a card of its own. None of these calls
 * waits for other ranks: the last two say whether what was begun is done. Threads: one at a time.
 */
enum { MPG_GPU_CARD_NAME = 64, MPG_GPU_COMMUNICATOR_ID = 128 };
typedef struct mpg_gpu_communicator mpg_gpu_communicator; /* lives as long as the process */
typedef struct mpg_gpu_communicators {
  /* By which all processes know a device's card. Fails where there is no library. */
  mpg_status (*card)(mpg_device_id device, char *name, size_t size);
  mpg_status (*id)(char *id); /* one rank makes it, for all */
  mpg_status (*join)(mpg_device_id device, const char *id, int rank, int count,
                     mpg_gpu_communicator **communicator);
  void (*leave)(mpg_gpu_communicator *c); /* also with work under way; nothing is done after it */
  /* This thread issues work now, behind what the host has copied to the device so far. */
  mpg_status (*begin)(mpg_gpu_communicator *c);
  void *(*stream)(mpg_gpu_communicator *c);
  mpg_status (*copy)(mpg_gpu_communicator *c, void *to, const void *from, size_t size);
  /* Part r of `from` goes to rank r, and part r of `to` comes from there; but for the own ones. */
  mpg_status (*exchange)(mpg_gpu_communicator *c, const char *from, char *to, size_t size);
  /* All ranks get each one's own part. */
  mpg_status (*gather)(mpg_gpu_communicator *c, char *parts, size_t size);
  /* In an order that the library chooses. dtype: its number. */
  mpg_status (*sum)(mpg_gpu_communicator *c, const void *from, void *to, size_t count,
                    uint32_t dtype);
  mpg_status (*issued)(mpg_gpu_communicator *c, bool *done); /* what follows on the stream may go */
  mpg_status (*finished)(mpg_gpu_communicator *c, bool *done);
} mpg_gpu_communicators;

enum { MPG_GPU_EVENTS = 64 };

typedef struct mpg_gpu_driver {
  /* The number of devices; 0: *reason (static) says why. */
  int (*count)(const char **reason);
  mpg_status (*open)(mpg_device_id id, mpg_gpu **gpu);
  mpg_gpu_reports *(*reports)(mpg_gpu *gpu); /* zeroed; lives as long as the process */
  void (*close)(mpg_gpu *gpu);  /* after its work, which it waits for; what kernels keep is freed by
                                   this thread afterwards */
  void (*attach)(mpg_gpu *gpu); /* this thread will issue its work */
  void *(*stream)(mpg_gpu *gpu); /* the compute stream */
  mpg_status (*allocate)(mpg_gpu *gpu, size_t size,
                         void **memory); /* 256-byte aligned, usable at once */
  /* `after`: work issued so far may still use it; else none does. */
  void (*free)(mpg_gpu *gpu, void *memory, bool after);
  /* Returns freed memory from the driver's pool to the card. Blocks. */
  void (*trim)(mpg_gpu *gpu);
  /* Called by the issuing thread: puts a write of `tick` behind the issued work. */
  mpg_status (*publish)(mpg_gpu *gpu, mpg_tick tick);
  /* Events of a device are numbered 0..MPG_GPU_EVENTS-1. Recorded behind the work issued so far (by
   * any thread); `peer`'s stream waits, in its order. */
  mpg_status (*record)(mpg_gpu *gpu, int event);
  mpg_status (*wait)(mpg_gpu *peer, mpg_gpu *gpu, int event);
  /* MPG_OK, or what went wrong on the device: it is lost then, all its work with it. */
  mpg_status (*check)(mpg_gpu *gpu);
  /* On other streams than the compute stream. The first blocks. The second returns when it has read
   * `host`; work issued from then on sees the bytes. */
  mpg_status (*copy_to_host)(mpg_gpu *gpu, void *host, const void *memory, size_t size);
  mpg_status (*copy_from_host)(mpg_gpu *gpu, void *memory, const void *host, size_t size);
  /* As in mpg_sharing (device.h). */
  int (*card)(mpg_gpu *gpu);
  void *(*arrivals)(mpg_gpu *gpu);
  mpg_status (*received)(mpg_gpu *gpu);
  mpg_status (*arrived)(mpg_gpu *gpu);
  mpg_status (*follow_default)(mpg_gpu *gpu);
  mpg_status (*settle)(mpg_gpu *gpu);
  /* In the order of the compute stream; called by the issuing thread. `to`, `from`: NULL for host
   * memory, which may be written or read until the stream has finished the copy. */
  mpg_status (*copy)(mpg_gpu *gpu, mpg_gpu *to, void *target, mpg_gpu *from, const void *source,
                     size_t size);
  mpg_status (*finish)(mpg_gpu *gpu); /* blocks until the compute stream has passed all of it */
  mpg_status (*memory)(mpg_gpu *gpu, size_t *free_bytes, size_t *total); /* of the card */
  /* Whole pages of host memory, for all cards: copies of locked memory need no stage. */
  mpg_status (*lock)(void *memory, size_t size);
  void (*unlock)(void *memory);
  /* Captures of issued work, to be replayed as one. Called by the issuing thread: between the two
   * calls work goes to *stream and does not run. `keep`: *capture becomes the issued work, as an
   * update of the earlier capture if there is one. On failure *capture may be NULL, and the work
   * must be issued without it. *stream is NULL if the card cannot be captured at the moment, as
   * another thread synchronizes it; then there is no capture to end. */
  mpg_status (*capture_begin)(mpg_gpu *gpu, void **stream);
  /* True if a call of another thread has invalidated the capture (cudaDeviceSynchronize does). */
  bool (*capture_void)(mpg_gpu *gpu);
  mpg_status (*capture_end)(mpg_gpu *gpu, bool keep, void **capture);
  mpg_status (*capture_run)(mpg_gpu *gpu, void *capture);
  void (*capture_free)(void *capture); /* any thread; it may still be running */
  /* MPG_CAPTURE_KEYS keys in the device's memory, allocated by the first call. Given keys are
   * written to the first of them, behind the issued work, and may be freed at once. */
  mpg_status (*keys)(mpg_gpu *gpu, mpg_random_key **keys);
  mpg_status (*write_keys)(mpg_gpu *gpu, const mpg_random_key *keys, int count);
  /* MPG_OK if the devices of these numbers can take part in one collective; else why not. Host
   * lock. */
  mpg_status (*collectives)(const int *indices, int count);
  const mpg_gpu_communicators *communicators;
  /* NVIDIA's library of that number, opened by the call; NULL: there is none of it. `reason` of one
   * that is not there says how to get it. */
  const mpg_library *(*library)(int number);
  const char *(*describe)(mpg_gpu *gpu); /* "NVIDIA H100 80GB HBM3 (compute capability 9.0)" */
} mpg_gpu_driver;

/* Kernels in CUDA C++ that users write. What is made of them lives as long as the process. */
typedef struct mpg_gpu_source {
  const char *text;
  int num_options, num_exports;
  const char *const *options, *const *exports; /* NVRTC's; names that are not extern "C" */
} mpg_gpu_source;
typedef struct mpg_gpu_modules {
  mpg_status (*compile)(const mpg_gpu_source *source, void **module);
  mpg_status (*kernel)(void *module, const char *name, const void **kernel);
  /* Running work. arguments: where each is. */
  mpg_status (*launch)(const void *kernel, void *stream, const uint32_t grid[3],
                       const uint32_t block[3], uint32_t shared, void **arguments);
} mpg_gpu_modules;

/* The table that the library exports, by mpg_gpu_library_open. `stamp` tells builds from different
 * sources apart. */
typedef struct mpg_gpu_library {
  uint64_t stamp;
  const mpg_gpu_driver *driver;
  const mpg_gpu_modules *modules;
  const void *kernels; /* const mpg_kernel_fn[MPG_OP_COUNT], NULL where there is none yet: of
                          op/kernel.h, above this layer */
  void (*fused)(void); /* an mpg_kernel_fn for fused groups; NULL: none */
  void (*fuses)(void); /* an mpg_fuses_fn: what may be in them */
} mpg_gpu_library;
typedef const mpg_gpu_library *(*mpg_gpu_library_open_fn)(const mpg_gpu_services *services);
#define MPG_GPU_LIBRARY_OPEN "mpg_gpu_library_open"

/* gpu.c: the services `check` and `make_room`. */
void mpg_gpu_make_room(int card);
mpg_status mpg_gpu_check(mpg_device *device, mpg_gpu_report **report, _Atomic(uint32_t) **raised);

/* gpu.c: communicators of a device, each over the GPUs of the numbers indices[rank]; all ranks join
 * in the same order, with an id that one of them has made. A device has them until the process
 * ends. Host lock. */
mpg_status mpg_gpu_communicator_join(mpg_device *device, const int32_t *indices, const char *id);
/* NULL: it has none over these. *calls: what can be done with it, by one thread at a time. */
mpg_gpu_communicator *mpg_gpu_communicator_of(const mpg_device *device, const int32_t *indices,
                                              const mpg_gpu_communicators **calls);
/* Leaves one that nothing has used yet; it may be joined anew. None: nothing is done. */
void mpg_gpu_communicator_forget(mpg_device *device, const int32_t *indices);
/* The devices must be GPUs. */
mpg_status mpg_gpu_card_name(mpg_device *device, char *name, size_t size);
mpg_status mpg_gpu_communicator_id(mpg_device *device, char *id);

/* gpu_library.c. Host lock. The library, opened on the first call; NULL: *reason (static) says why
 * there is none. */
const mpg_gpu_library *mpg_gpu_library_get(const char **reason);
/* True: it was opened before this process was forked, and its driver cannot be used here. */
bool mpg_gpu_library_forked(void);
/* Called with the library when it has been opened, before any device of it; set once at start by
 * the host. `stamp`: what the library's must be. */
void mpg_gpu_library_on_open(void (*opened)(const mpg_gpu_library *library), uint64_t stamp);

#endif
