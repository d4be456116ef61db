/* GPUs: the interface between the core and the library of GPU kernels.
 *
 * The library (kernels/cuda) is opened when a GPU is first requested. It exports a driver, the
 * table below, which manages streams, events and memory. Tasks and timelines are managed by gpu.c.
 * The library calls the core only through a table of services, so it does not link against the
 * core.
 *
 * A device's work is issued by its worker, in order, onto its single compute stream. A tick is
 * *issued* when all its work is on the stream. It is completed when the stream has passed it; the
 * stream itself writes the tick to host memory (mpg_device.completed). If work of one GPU waits for
 * another GPU, its stream waits for a CUDA event of the other stream, and the host does not block.
 * A wait between a GPU and a CPU device blocks the worker.
 *
 * Ownership: library and driver live as long as the process; an mpg_gpu lives as long as its
 * device. Threads: any, unless stated otherwise. Functions that fail set the thread's error text.
 */
#ifndef MPG_DEVICE_GPU_GPU_H
#define MPG_DEVICE_GPU_GPU_H

#include "base/library.h"
#include "device/device.h"
#include "device/rendezvous.h"

typedef struct mpg_gpu mpg_gpu; /* driver state of one logical device */

/* Host memory that a GPU writes: the tick that its stream has passed, and reports of failed
 * device-side assertions, which are errors that kernels detect in their inputs. The GPU writes the
 * report first, then `raised`, and `completed` after the work. Pointers are host addresses. A
 * forked child may have no access to this memory. */
enum { MPG_GPU_REPORTS = 64 };
typedef struct mpg_gpu_report {
  /* Format for mpg_fail, with arguments `name` (%s) and the four `values` (%lld). Valid until the
   * process ends. NULL means no error. */
  const char *format;
  const char *name;
  int64_t values[4];
  uint32_t scope; /* block path of the instruction (mpg_scope_text); 0 means none */
  int32_t status;
} mpg_gpu_report;
typedef struct mpg_gpu_reports {
  _Alignas(64) _Atomic(mpg_tick) completed;
  _Alignas(64) _Atomic(uint32_t) raised;
  mpg_gpu_report list[MPG_GPU_REPORTS];
} mpg_gpu_reports;

/* Functions of the core that the library calls. */
typedef struct mpg_gpu_services {
  mpg_status (*fail)(mpg_status code, const char *format, va_list arguments);
  const char *(*error_text)(void);
  /* called by running work */
  void *(*scratch)(mpg_device *device, mpg_scratch_slot slot, size_t size);
  /* Sets *folders to the folders that the host searches for libraries (borrowed), and returns their
   * number. */
  int (*folders)(const char *const **folders);
  /* Registers a check (gpu/issued.h) of running work. If the check fails, the next kernel that the
   * work issues writes *report if it is still empty, and then sets *raised. Waits while too many
   * checks are open. */
  mpg_status (*check)(mpg_device *device, mpg_gpu_report **report, _Atomic(uint32_t) **raised);
  /* See rendezvous.h. */
  mpg_status (*rendezvous_join)(const mpg_participant *participant, mpg_rendezvous **rendezvous,
                                int *place);
  const void *(*rendezvous_data)(const mpg_rendezvous *rendezvous, int place);
  void (*rendezvous_leave)(mpg_rendezvous *rendezvous);
  /* Releases to the driver the unused cached memory of all pools on the physical GPU `card`. May be
   * called from any thread. */
  void (*make_room)(int card);
} mpg_gpu_services;

/* Communicators over ranks, with one GPU per rank. No two ranks use the same physical GPU. No call
 * waits for other ranks; the caller polls `issued` and `finished`. Threads: one at a time. */
enum { MPG_GPU_CARD_NAME = 64, MPG_GPU_COMMUNICATOR_ID = 128 };
typedef struct mpg_gpu_communicator mpg_gpu_communicator; /* lives as long as the process */
typedef struct mpg_gpu_communicators {
  /* Sets `name` to an identifier of the physical GPU. The identifier is the same in all processes.
   * Fails if NCCL is unavailable. */
  mpg_status (*card)(mpg_device_id device, char *name, size_t size);
  /* Creates an id of MPG_GPU_COMMUNICATOR_ID bytes. One rank creates it for all ranks. */
  mpg_status (*id)(char *id);
  mpg_status (*join)(mpg_device_id device, const char *id, int rank, int count,
                     mpg_gpu_communicator **communicator);
  /* Aborts collectives in flight, and waits for work that was issued after them. */
  void (*leave)(mpg_gpu_communicator *c);
  /* Prepares the calling thread to issue work. The work runs after all earlier copies from the host
   * to the device. */
  mpg_status (*begin)(mpg_gpu_communicator *c);
  void *(*stream)(mpg_gpu_communicator *c);
  mpg_status (*copy)(mpg_gpu_communicator *c, void *to, const void *from, size_t size);
  /* All-to-all: sends part r of `from` to rank r, and receives part r of `to` from rank r. Skips
   * this rank's own part. */
  mpg_status (*exchange)(mpg_gpu_communicator *c, const char *from, char *to, size_t size);
  /* All-gathers: every rank gets the parts of all ranks. */
  mpg_status (*gather)(mpg_gpu_communicator *c, char *parts, size_t size);
  /* All-reduces; NCCL chooses the order of the additions. `dtype` is an mpg_dtype. */
  mpg_status (*sum)(mpg_gpu_communicator *c, const void *from, void *to, size_t count,
                    uint32_t dtype);
  /* Sets *done if the last collective has been issued, so that more work may be put on the
   * stream. */
  mpg_status (*issued)(mpg_gpu_communicator *c, bool *done);
  mpg_status (*finished)(mpg_gpu_communicator *c, bool *done);
} mpg_gpu_communicators;

enum { MPG_GPU_EVENTS = 64 };

typedef struct mpg_gpu_driver {
  /* Returns the number of devices. If it is 0, sets *reason (static). */
  int (*count)(const char **reason);
  mpg_status (*open)(mpg_device_id id, mpg_gpu **gpu);
  mpg_gpu_reports *(*reports)(mpg_gpu *gpu); /* zeroed; lives as long as the process */
  /* Waits for the issued work. Selects the GPU for this thread, which then frees the kernels'
   * state. */
  void (*close)(mpg_gpu *gpu);
  /* Selects the GPU for the calling thread, which then issues its work. */
  void (*attach)(mpg_gpu *gpu);
  void *(*stream)(mpg_gpu *gpu); /* the compute stream */
  /* Allocates 256-byte aligned memory that any stream may use at once. */
  mpg_status (*allocate)(mpg_gpu *gpu, size_t size, void **memory);
  /* If `after`, work issued so far may still use the memory, so it is freed after that work. */
  void (*free)(mpg_gpu *gpu, void *memory, bool after);
  /* Releases unused memory of CUDA's memory pool to the GPU. Blocks. */
  void (*trim)(mpg_gpu *gpu);
  /* Makes the stream write `tick` to `completed` after the issued work. Called by the issuing
   * thread. */
  mpg_status (*publish)(mpg_gpu *gpu, mpg_tick tick);
  /* Events of a device are numbered 0..MPG_GPU_EVENTS-1. `record` records an event after the work
   * issued so far; it may be called from any thread. `wait` makes the stream of `peer` wait for an
   * event of `gpu`. */
  mpg_status (*record)(mpg_gpu *gpu, int event);
  mpg_status (*wait)(mpg_gpu *peer, mpg_gpu *gpu, int event);
  /* Returns MPG_OK if the device works. Otherwise sets the error, and the caller treats the device
   * and all its work as lost. */
  mpg_status (*check)(mpg_gpu *gpu);
  /* Copies on streams other than the compute stream. copy_to_host blocks until the data has
   * arrived. copy_from_host returns once it has read `host`, and work issued after that sees the
   * data. */
  mpg_status (*copy_to_host)(mpg_gpu *gpu, void *host, const void *memory, size_t size);
  mpg_status (*copy_from_host)(mpg_gpu *gpu, void *memory, const void *host, size_t size);
  /* As in mpg_sharing (device.h), where `arrivals` is called `stream`. */
  int (*card)(mpg_gpu *gpu);
  void *(*arrivals)(mpg_gpu *gpu);
  mpg_status (*received)(mpg_gpu *gpu);
  mpg_status (*arrived)(mpg_gpu *gpu);
  mpg_status (*follow_default)(mpg_gpu *gpu);
  mpg_status (*settle)(mpg_gpu *gpu);
  /* Copies in the order of the compute stream; called by the issuing thread. `to` or `from` is NULL
   * for host memory, which the stream may access until it has finished the copy. */
  mpg_status (*copy)(mpg_gpu *gpu, mpg_gpu *to, void *target, mpg_gpu *from, const void *source,
                     size_t size);
  mpg_status (*finish)(mpg_gpu *gpu); /* blocks until the compute stream is idle */
  mpg_status (*memory)(mpg_gpu *gpu, size_t *free_bytes, size_t *total); /* of the physical GPU */
  /* Page-locks whole pages of host memory for all GPUs, so that copies need no staging buffer. */
  mpg_status (*lock)(void *memory, size_t size);
  void (*unlock)(void *memory);
  /* Captures of issued work, which are replayed as a unit. Called by the issuing thread. Between
   * begin and end, work is recorded on *stream and does not run. If `keep`, *capture becomes the
   * recorded work; an existing *capture is updated in place if possible. If capture_end fails,
   * *capture may be NULL, and the work must be issued without a capture. If capturing is impossible
   * at the moment because another thread synchronizes the GPU, *stream is NULL and capture_end must
   * not be called. */
  mpg_status (*capture_begin)(mpg_gpu *gpu, void **stream);
  /* True if a call in another thread, such as cudaDeviceSynchronize, has invalidated the
   * capture. */
  bool (*capture_void)(mpg_gpu *gpu);
  mpg_status (*capture_end)(mpg_gpu *gpu, bool keep, void **capture);
  mpg_status (*capture_run)(mpg_gpu *gpu, void *capture);
  void (*capture_free)(void *capture); /* any thread, even while the capture runs */
  /* `keys` returns MPG_CAPTURE_KEYS keys in the device's memory, allocated by the first call.
   * `write_keys` overwrites the first `count` of those keys after the issued work, and copies its
   * argument before it returns. */
  mpg_status (*keys)(mpg_gpu *gpu, mpg_random_key **keys);
  mpg_status (*write_keys)(mpg_gpu *gpu, const mpg_random_key *keys, int count);
  /* Returns MPG_OK if one NCCL collective can include the devices with these indices. Otherwise the
   * error says why not. Call with the host lock held. */
  mpg_status (*collectives)(const int *indices, int count);
  const mpg_gpu_communicators *communicators;
  /* Opens entry `number` of the list of NVIDIA libraries and returns it. Returns NULL if the number
   * is out of range. If the library is not installed, its `reason` says how to install it. */
  const mpg_library *(*library)(int number);
  /* Returns a description such as "NVIDIA H100 80GB HBM3 (compute capability 9.0)". */
  const char *(*describe)(mpg_gpu *gpu);
} mpg_gpu_driver;

/* CUDA C++ kernels written by users. Compiled modules live as long as the process. */
typedef struct mpg_gpu_source {
  const char *text;
  int num_options, num_exports;
  /* options: passed to NVRTC. exports: names of the kernels that are not extern "C". */
  const char *const *options, *const *exports;
} mpg_gpu_source;
typedef struct mpg_gpu_modules {
  mpg_status (*compile)(const mpg_gpu_source *source, void **module);
  mpg_status (*kernel)(void *module, const char *name, const void **kernel);
  /* Called by running work. `arguments` holds the address of each argument. */
  mpg_status (*launch)(const void *kernel, void *stream, const uint32_t grid[3],
                       const uint32_t block[3], uint32_t shared, void **arguments);
} mpg_gpu_modules;

/* The table that the library exports through mpg_gpu_library_open. `stamp` identifies the sources
 * of a build, so that the core can reject a library that was built from different sources. */
typedef struct mpg_gpu_library {
  uint64_t stamp;
  const mpg_gpu_driver *driver;
  const mpg_gpu_modules *modules;
  /* A const mpg_kernel_fn[MPG_OP_COUNT] with NULL for missing kernels. Untyped here because the
   * type belongs to a higher layer (op/kernel.h). */
  const void *kernels;
  void (*fused)(void); /* an mpg_kernel_fn for fused groups; NULL means none */
  void (*fuses)(void); /* an mpg_fuses_fn, which decides which nodes may be in fused groups */
} mpg_gpu_library;
typedef const mpg_gpu_library *(*mpg_gpu_library_open_fn)(const mpg_gpu_services *services);
#define MPG_GPU_LIBRARY_OPEN "mpg_gpu_library_open"

/* gpu.c: implementations of the services `check` and `make_room`. */
void mpg_gpu_make_room(int card);
mpg_status mpg_gpu_check(mpg_device *device, mpg_gpu_report **report, _Atomic(uint32_t) **raised);

/* gpu.c: joins a communicator over the GPUs indices[rank]. All ranks join in the same order, with
 * an id created by one of them. The device owns the communicator until the process ends. Call with
 * the host lock held. */
mpg_status mpg_gpu_communicator_join(mpg_device *device, const int32_t *indices, const char *id);
/* Returns the device's communicator over these GPUs, or NULL if the device has not joined one. Sets
 * *calls to its functions, which one thread at a time may call. */
mpg_gpu_communicator *mpg_gpu_communicator_of(const mpg_device *device, const int32_t *indices,
                                              const mpg_gpu_communicators **calls);
/* Leaves the communicator over these GPUs, which must not be in use. It may be joined again. Does
 * nothing if the device has not joined it. */
void mpg_gpu_communicator_forget(mpg_device *device, const int32_t *indices);
/* Wrappers for `card` and `id` of mpg_gpu_communicators. Fail if the device is not a GPU of this
 * process. */
mpg_status mpg_gpu_card_name(mpg_device *device, char *name, size_t size);
mpg_status mpg_gpu_communicator_id(mpg_device *device, char *id);

/* gpu_library.c. Call with the host lock held. Returns the library, which the first call opens. If
 * it is unavailable, returns NULL and sets *reason (static). */
const mpg_gpu_library *mpg_gpu_library_get(const char **reason);
/* True if this is a forked child whose parent opened the library, so the driver cannot be used
 * here. */
bool mpg_gpu_library_forked(void);
/* Sets the library's required stamp, and a callback that runs when the library is opened, before
 * any GPU is opened. Called once by the host at startup. */
void mpg_gpu_library_on_open(void (*opened)(const mpg_gpu_library *library), uint64_t stamp);

#endif
