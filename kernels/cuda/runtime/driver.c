/* GPU driver (device/gpu/gpu.h) over the CUDA runtime.
 *
 * A device is a whole GPU by default. MPGLUON_GPU_LOGICAL=n creates n logical devices that share
 * the GPUs round-robin. Each device has its own streams and memory pool.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/vendor/library.h"
#include "kernels/cuda/vendor/nccl.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"

struct mpg_gpu {
  int card;
  mpg_device_id id;
  int slot; /* index in `opened`, and bit number in a capture's `peers` */
  cudaStream_t compute, to_host, from_host;
  cudaStream_t capturing; /* used only for captures, which turn issued work into a graph */
  bool captures;          /* true during a capture; used only by the issuing thread */
  uint64_t peers;         /* bit mask: slots of other devices whose memory the capture uses */
  mpg_staging *staging;
  cudaEvent_t arrived;              /* recorded after the latest copy from the host */
  cudaStream_t allocating, freeing; /* separate, so that allocation does not wait for work */
  cudaMemPool_t pool;
  cudaEvent_t events[MPG_GPU_EVENTS];
  cudaEvent_t issued;           /* lets a free wait for the work issued before it */
  bool writes_ticks;            /* true if the stream can write ticks; if not, a kernel does */
  unsigned long long completed; /* device address of reports->completed */
  mpg_gpu_reports *reports;
  mpg_random_key *keys; /* NULL until requested; used only by the issuing thread */
  char description[320];
};

/* Types of the driver API's cuStreamWriteValue64 and cuDeviceGetAttribute. */
typedef int (*write_value_fn)(cudaStream_t stream, unsigned long long address, uint64_t value,
                              unsigned flags);
typedef int (*attribute_fn)(int *value, int attribute, int card);

/* CAN_WRITE_64_BITS is CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS. */
enum { MOST_DEVICES = 64, CAN_WRITE_64_BITS = 122 };

/* Process-wide state. The host lock guards it until `counted` is set. Afterwards only `opened`
 * changes. */
static struct {
  int cards, devices;
  _Atomic(mpg_gpu *) opened[MOST_DEVICES]; /* gpu(0) and gpu(0, rank=0) have separate entries */
  bool counted;
  write_value_fn write_value; /* NULL if the driver lacks it */
  attribute_fn attribute;
  char reason[256];
} cuda_state;

static void *driver_function(const char *name) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result);
#else
  cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) return function;
  cudaGetLastError();
  return NULL;
}

static void look_for_cards(void) {
  const char *logical = getenv("MPGLUON_GPU_LOGICAL");
  long wanted = logical && *logical ? strtol(logical, NULL, 10) : 0;
  int version = 0;
  /* Logical devices run in parallel only if their streams have separate hardware queues. Without
   * logical devices, the default of 8 queues suffices. All processes share a GPU's few hundred
   * queues, so the limit is raised only if necessary. */
  if (wanted < 1 || wanted > MOST_DEVICES) wanted = 0;
  if (wanted > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  cudaError_t error = cudaGetDeviceCount(&cuda_state.cards);
  if (error != cudaSuccess || !cuda_state.cards) {
    cuda_state.cards = 0;
    cudaDriverGetVersion(&version);
    cudaGetLastError();
    if (!version)
      snprintf(cuda_state.reason, sizeof cuda_state.reason,
               "no NVIDIA driver is installed (libcuda.so.1)");
    else if (error == cudaErrorInsufficientDriver)
      snprintf(cuda_state.reason, sizeof cuda_state.reason,
               "the NVIDIA driver supports CUDA %d.%d, but mpgluon was built with the newer CUDA "
               "%d.%d; update the driver",
               version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
               CUDART_VERSION % 1000 / 10);
    else
      snprintf(cuda_state.reason, sizeof cuda_state.reason, "the NVIDIA driver finds no GPU (%s)",
               cudaGetErrorString(error));
    return;
  }
  cuda_state.write_value = (write_value_fn)(uintptr_t)driver_function("cuStreamWriteValue64");
  cuda_state.attribute = (attribute_fn)(uintptr_t)driver_function("cuDeviceGetAttribute");
  cuda_state.devices = wanted                             ? (int)wanted
                       : cuda_state.cards <= MOST_DEVICES ? cuda_state.cards
                                                          : MOST_DEVICES;
}

static int driver_count(const char **reason) {
  if (!cuda_state.counted) look_for_cards();
  cuda_state.counted = true;
  *reason = cuda_state.reason;
  return cuda_state.devices;
}

/* Returns information about the library with index `number`. The index after the last library means
 * the driver, whose version is the newest CUDA version that it supports. */
static const mpg_library *driver_library(int number) {
  static mpg_library driver = {.name = "driver", .path = "libcuda.so.1"};
  if (number != MPG_CUDA_LIBRARIES) return mpg_cuda_library_found(number);
  int version = 0;
  cudaDriverGetVersion(&version);
  snprintf(driver.version, sizeof driver.version, "%d.%d", version / 1000, version % 1000 / 10);
  driver.handle = version ? &driver : NULL;
  return &driver;
}

static mpg_status make_streams(mpg_gpu *gpu) {
  cudaStream_t *const streams[] = {&gpu->compute,    &gpu->to_host, &gpu->from_host,
                                   &gpu->allocating, &gpu->freeing, &gpu->capturing};
  for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
    MPG_CUDA_TRY(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking));
  for (int i = 0; i < MPG_GPU_EVENTS; i++)
    MPG_CUDA_TRY(cudaEventCreateWithFlags(&gpu->events[i], cudaEventDisableTiming));
  MPG_CUDA_TRY(cudaEventCreateWithFlags(&gpu->issued, cudaEventDisableTiming));
  MPG_CUDA_TRY(cudaEventCreateWithFlags(&gpu->arrived, cudaEventDisableTiming));
  return mpg_staging_open(&gpu->staging);
}

/* Creates the device's memory pool, which caches freed memory without a limit. Other GPUs get
 * access to the pool if the hardware supports peer access. */
static mpg_status make_pool(mpg_gpu *gpu) {
  struct cudaMemPoolProps properties;
  memset(&properties, 0, sizeof properties);
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = gpu->card;
  MPG_CUDA_TRY(cudaMemPoolCreate(&gpu->pool, &properties));
  uint64_t keep = UINT64_MAX;
  MPG_CUDA_TRY(cudaMemPoolSetAttribute(gpu->pool, cudaMemPoolAttrReleaseThreshold, &keep));
  for (int peer = 0; peer < cuda_state.cards; peer++) {
    int can = 0;
    if (peer == gpu->card || cudaDeviceCanAccessPeer(&can, peer, gpu->card) != cudaSuccess || !can)
      continue;
    struct cudaMemAccessDesc access = {.location = {.type = cudaMemLocationTypeDevice},
                                       .flags = cudaMemAccessFlagsProtReadWrite};
    access.location.id = peer; /* not in the initializer: a union member since CUDA 13.1 */
    MPG_CUDA_TRY(cudaMemPoolSetAccess(gpu->pool, &access, 1));
  }
  return MPG_OK;
}

/* Creates the device's reports, streams and pool on the thread's current GPU. */
static mpg_status prepare(mpg_gpu *gpu) {
  struct cudaDeviceProp properties;
  void *mapped;
  MPG_CUDA_TRY(cudaGetDeviceProperties(&properties, gpu->card));
  snprintf(gpu->description, sizeof gpu->description, "%s (compute capability %d.%d)",
           properties.name, properties.major, properties.minor);
  MPG_CUDA_TRY(cudaHostAlloc((void **)&gpu->reports, sizeof *gpu->reports,
                             cudaHostAllocMapped | cudaHostAllocPortable));
  memset(gpu->reports, 0, sizeof *gpu->reports);
  MPG_CUDA_TRY(cudaHostGetDevicePointer(&mapped, gpu->reports, 0));
  gpu->completed = (unsigned long long)(uintptr_t)mapped + offsetof(mpg_gpu_reports, completed);
  int can = 0;
  gpu->writes_ticks = cuda_state.write_value && cuda_state.attribute &&
                      cuda_state.attribute(&can, CAN_WRITE_64_BITS, gpu->card) == 0 && can;
  MPG_TRY(make_streams(gpu));
  return make_pool(gpu);
}

static mpg_status driver_open(mpg_device_id id, mpg_gpu **result) {
  int slot = 0, former;
  while (slot < MOST_DEVICES && atomic_load(&cuda_state.opened[slot])) slot++;
  if (slot == MOST_DEVICES)
    return mpg_fail(MPG_ERROR, "a process can open at most %d GPUs", MOST_DEVICES);
  mpg_gpu *gpu = mpg_calloc(1, sizeof *gpu);
  if (!gpu) return mpg_out_of_host_memory(sizeof *gpu);
  gpu->id = id;
  gpu->slot = slot;
  gpu->card = id.index % cuda_state.cards;
  mpg_status status;
  MPG_GOTO(mpg_cuda_enter(gpu->card, &former));
  status = prepare(gpu);
  mpg_cuda_leave(former);
  if (status != MPG_OK) goto fail;
  atomic_store(&cuda_state.opened[slot], gpu);
  *result = gpu;
  return MPG_OK;
fail: /* streams and pool are leaked until the process ends */
  mpg_free(gpu);
  return status;
}

mpg_status mpg_cuda_device_card(mpg_device_id id, int *card, cudaEvent_t *arrived) {
  for (int i = 0; i < MOST_DEVICES; i++) {
    const mpg_gpu *gpu = atomic_load(&cuda_state.opened[i]);
    if (!gpu) break;
    if (!mpg_device_id_equal(gpu->id, id)) continue;
    *card = gpu->card;
    *arrived = gpu->arrived;
    return MPG_OK;
  }
  return mpg_fail(MPG_ERROR, "%s is not open", mpg_device_id_text(id).text);
}

static mpg_status driver_collectives(const int *indices, int count) {
  int cards = cuda_state.cards;
  for (int i = 0; i < count; i++)
    for (int k = 0; k < i; k++)
      if (indices[i] % cards == indices[k] % cards)
        return mpg_fail(MPG_NOT_IMPLEMENTED,
                        "gpu(%d) and gpu(%d) are on one card, but NCCL takes each card only once; "
                        "use transport='local' instead",
                        indices[k], indices[i]);
  return mpg_nccl_find(NULL);
}

static void driver_close(mpg_gpu *gpu) {
  cudaSetDevice(gpu->card);
  mpg_nccl_close(gpu->card); /* first, because work may wait forever for a failed collective */
  cudaSetDevice(gpu->card);
  cudaStreamSynchronize(gpu->compute); /* only waits: process exit frees streams and memory */
  cudaGetLastError();
}

static void driver_attach(mpg_gpu *gpu) { cudaSetDevice(gpu->card); }
static mpg_gpu_reports *driver_reports(mpg_gpu *gpu) { return gpu->reports; }
static void *driver_stream(mpg_gpu *gpu) { return gpu->compute; }

static void driver_trim(mpg_gpu *gpu) {
  cudaStreamSynchronize(gpu->freeing);
  cudaMemPoolTrimTo(gpu->pool, 0);
  cudaGetLastError();
}

static void trim_card(int card) {
  for (int i = 0; i < MOST_DEVICES; i++) {
    mpg_gpu *gpu = atomic_load(&cuda_state.opened[i]);
    if (gpu && gpu->card == card) driver_trim(gpu);
  }
}

static mpg_status allocate(mpg_gpu *gpu, size_t size, void **memory) {
  cudaError_t error = cudaMallocFromPoolAsync(memory, size, gpu->pool, gpu->allocating);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    trim_card(gpu->card); /* completes pending frees and releases memory that pools cache */
    error = cudaMallocFromPoolAsync(memory, size, gpu->pool, gpu->allocating);
  }
  MPG_TRY(mpg_cuda_check(error, "cudaMallocFromPoolAsync"));
  return mpg_cuda_check(cudaStreamSynchronize(gpu->allocating), "cudaStreamSynchronize");
}

static mpg_status driver_allocate(mpg_gpu *gpu, size_t size, void **memory) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status = allocate(gpu, size, memory);
  mpg_cuda_leave(former);
  return status;
}

static void driver_free(mpg_gpu *gpu, void *memory, bool after) {
  cudaStreamWaitEvent(gpu->freeing, gpu->arrived, 0); /* copies to `memory` may be in flight */
  if (after && cudaEventRecord(gpu->issued, gpu->compute) == cudaSuccess)
    cudaStreamWaitEvent(gpu->freeing, gpu->issued, 0);
  cudaFreeAsync(memory, gpu->freeing);
  cudaGetLastError(); /* a free fails only on a lost device, which is reported elsewhere */
}

static mpg_status driver_publish(mpg_gpu *gpu, mpg_tick tick) {
  if (!gpu->writes_ticks)
    return mpg_cuda_write_tick(gpu->compute, (uint64_t *)(uintptr_t)gpu->completed, tick);
  int error = cuda_state.write_value(gpu->compute, gpu->completed, tick, 0);
  return error ? mpg_fail(MPG_ERROR, "cuStreamWriteValue64 failed: %s",
                          cudaGetErrorString((cudaError_t)error))
               : MPG_OK;
}

static mpg_status driver_record(mpg_gpu *gpu, int event) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status =
      mpg_cuda_check(cudaEventRecord(gpu->events[event], gpu->compute), "cudaEventRecord");
  mpg_cuda_leave(former);
  return status;
}

static mpg_status driver_wait(mpg_gpu *waiting, mpg_gpu *gpu, int event) {
  return mpg_cuda_check(cudaStreamWaitEvent(waiting->compute, gpu->events[event], 0),
                        "cudaStreamWaitEvent");
}

static mpg_status driver_check(mpg_gpu *gpu) {
  cudaError_t error = cudaStreamQuery(gpu->compute);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return mpg_nccl_check(gpu->card);
  }
  if (error == cudaSuccess) MPG_TRY(mpg_nccl_check(gpu->card));
  return error == cudaSuccess ? MPG_OK : mpg_fail(MPG_ERROR, "%s", cudaGetErrorString(error));
}

static mpg_status driver_copy_to_host(mpg_gpu *gpu, void *host, const void *memory, size_t size) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status =
      mpg_cuda_check(cudaStreamWaitEvent(gpu->to_host, gpu->arrived, 0), "cudaStreamWaitEvent");
  if (status == MPG_OK) status = mpg_staging_read(gpu->staging, gpu->to_host, host, memory, size);
  mpg_cuda_leave(former);
  return status;
}

/* Makes later work in the compute stream wait for the copies issued to `from_host` so far. */
static mpg_status note_arrival(mpg_gpu *gpu) {
  MPG_CUDA_TRY(cudaEventRecord(gpu->arrived, gpu->from_host));
  return mpg_cuda_check(cudaStreamWaitEvent(gpu->compute, gpu->arrived, 0), "cudaStreamWaitEvent");
}

static mpg_status driver_copy_from_host(mpg_gpu *gpu, void *memory, const void *host, size_t size) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status = mpg_staging_write(gpu->staging, gpu->from_host, memory, host, size);
  if (status == MPG_OK) status = note_arrival(gpu);
  mpg_cuda_leave(former);
  return status;
}

/* --- Sharing with other libraries ------------------------------------------------------------- */

static int driver_card(mpg_gpu *gpu) { return gpu->card; }
static void *driver_arrivals(mpg_gpu *gpu) { return gpu->from_host; }

static mpg_status driver_received(mpg_gpu *gpu) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status = note_arrival(gpu);
  mpg_cuda_leave(former);
  return status;
}

static mpg_status driver_arrived(mpg_gpu *gpu) {
  return mpg_cuda_check(cudaEventSynchronize(gpu->arrived), "cudaEventSynchronize");
}

static mpg_status follow_default(mpg_gpu *gpu) {
  cudaEvent_t event;
  MPG_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t error = cudaEventRecord(event, cudaStreamLegacy);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(gpu->from_host, event, 0);
  cudaEventDestroy(event);
  MPG_TRY(mpg_cuda_check(error, "cudaEventRecord"));
  return note_arrival(gpu);
}

static mpg_status driver_follow_default(mpg_gpu *gpu) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status = follow_default(gpu);
  mpg_cuda_leave(former);
  return status;
}

/* Prevents captures on a GPU while driver_settle synchronizes the whole GPU. If a stream of the GPU
 * were being captured, CUDA would fail the synchronization and invalidate the capture. */
static struct {
  pthread_mutex_t mutex;
  pthread_cond_t ended;
  struct {
    int captures, settling;
  } cards[MOST_DEVICES];
} captured = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* Registers a capture on the GPU. Returns false if a thread is synchronizing the GPU. */
static bool capture_may_begin(int card) {
  pthread_mutex_lock(&captured.mutex);
  bool may = !captured.cards[card].settling;
  captured.cards[card].captures += may;
  pthread_mutex_unlock(&captured.mutex);
  return may;
}

static void capture_has_ended(int card) {
  pthread_mutex_lock(&captured.mutex);
  captured.cards[card].captures--;
  pthread_cond_broadcast(&captured.ended);
  pthread_mutex_unlock(&captured.mutex);
}

static mpg_status driver_settle(mpg_gpu *gpu) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  pthread_mutex_lock(&captured.mutex);
  captured.cards[gpu->card].settling++;
  while (captured.cards[gpu->card].captures) pthread_cond_wait(&captured.ended, &captured.mutex);
  pthread_mutex_unlock(&captured.mutex);
  mpg_status status = mpg_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  pthread_mutex_lock(&captured.mutex);
  captured.cards[gpu->card].settling--;
  pthread_mutex_unlock(&captured.mutex);
  mpg_cuda_leave(former);
  return status;
}

static mpg_status driver_finish(mpg_gpu *gpu) {
  return mpg_cuda_check(cudaStreamSynchronize(gpu->compute), "cudaStreamSynchronize");
}

static mpg_status driver_copy(mpg_gpu *gpu, mpg_gpu *to, void *target, mpg_gpu *from,
                              const void *source, size_t size) {
  cudaStream_t stream = gpu->captures ? gpu->capturing : gpu->compute;
  if (!to) return mpg_staging_push(gpu->staging, stream, target, source, size);
  if (!from) return mpg_staging_pull(gpu->staging, stream, target, source, size);
  /* Copies from the host to the other device may be in flight, so the copy must wait for them. */
  mpg_gpu *peer = from != gpu ? from : to;
  if (gpu->captures)
    gpu->peers |= peer != gpu ? (uint64_t)1 << peer->slot : 0;
  else if (peer != gpu)
    MPG_CUDA_TRY(cudaStreamWaitEvent(stream, peer->arrived, 0));
  if (to->card != from->card)
    return mpg_cuda_check(cudaMemcpyPeerAsync(target, to->card, source, from->card, size, stream),
                          "a copy between devices");
  return mpg_cuda_check(cudaMemcpyAsync(target, source, size, cudaMemcpyDeviceToDevice, stream),
                        "a copy between devices");
}

static mpg_status driver_memory(mpg_gpu *gpu, size_t *free_bytes, size_t *total) {
  int former;
  MPG_TRY(mpg_cuda_enter(gpu->card, &former));
  mpg_status status = mpg_cuda_check(cudaMemGetInfo(free_bytes, total), "cudaMemGetInfo");
  mpg_cuda_leave(former);
  return status;
}

/* --- Captures --------------------------------------------------------------------------------- */

typedef struct capture {
  cudaGraphExec_t exec;
  uint64_t peers;
} capture;

static void driver_capture_free(void *which) {
  capture *c = which;
  if (c->exec) cudaGraphExecDestroy(c->exec);
  cudaGetLastError();
  mpg_free(c);
}

static mpg_status driver_capture_begin(mpg_gpu *gpu, void **stream) {
  *stream = NULL;
  if (!capture_may_begin(gpu->card)) return MPG_OK;
  mpg_status status =
      mpg_cuda_check(cudaStreamBeginCapture(gpu->capturing, cudaStreamCaptureModeRelaxed),
                     "cudaStreamBeginCapture");
  if (status != MPG_OK) {
    capture_has_ended(gpu->card);
    return status;
  }
  mpg_cuda_watch_failures();
  gpu->captures = true;
  gpu->peers = 0;
  *stream = gpu->capturing;
  return MPG_OK;
}

static bool driver_capture_void(mpg_gpu *gpu) {
  enum cudaStreamCaptureStatus status;
  if (cudaStreamIsCapturing(gpu->capturing, &status) == cudaSuccess)
    return status == cudaStreamCaptureStatusInvalidated && !mpg_cuda_failed_by_itself();
  cudaGetLastError();
  return false;
}

/* Instantiates `graph` as the capture's executable graph. Updates the existing executable graph if
 * possible, which is faster. */
static mpg_status instantiate(capture *c, cudaGraph_t graph, int card) {
  cudaGraphExecUpdateResultInfo info;
  if (c->exec && cudaGraphExecUpdate(c->exec, graph, &info) == cudaSuccess) return MPG_OK;
  cudaGetLastError(); /* the update fails if the graph's structure or kernels differ */
  if (c->exec) cudaGraphExecDestroy(c->exec);
  c->exec = NULL;
  cudaError_t error = cudaGraphInstantiate(&c->exec, graph, 0);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    mpg_cuda_services->make_room(card);
    error = cudaGraphInstantiate(&c->exec, graph, 0);
  }
  return mpg_cuda_check(error, "cudaGraphInstantiate");
}

static mpg_status driver_capture_end(mpg_gpu *gpu, bool keep, void **result) {
  cudaGraph_t graph = NULL;
  capture *c = *result;
  gpu->captures = false;
  cudaError_t error = cudaStreamEndCapture(gpu->capturing, &graph);
  capture_has_ended(gpu->card);
  mpg_status status = keep ? mpg_cuda_check(error, "cudaStreamEndCapture") : MPG_OK;
  if (!keep) cudaGetLastError();
  if (keep && status == MPG_OK && !c && !(c = mpg_calloc(1, sizeof *c)))
    status = mpg_out_of_host_memory(sizeof *c);
  if (keep && status == MPG_OK) {
    c->peers = gpu->peers;
    status = instantiate(c, graph, gpu->card);
  }
  if (graph) cudaGraphDestroy(graph);
  if (keep && status != MPG_OK && c) {
    driver_capture_free(c);
    c = NULL;
  }
  *result = c;
  return status;
}

static mpg_status driver_capture_run(mpg_gpu *gpu, void *which) {
  const capture *c = which;
  for (uint64_t left = c->peers; left; left &= left - 1) {
    const mpg_gpu *peer = atomic_load(&cuda_state.opened[__builtin_ctzll(left)]);
    MPG_CUDA_TRY(cudaStreamWaitEvent(gpu->compute, peer->arrived, 0));
  }
  return mpg_cuda_check(cudaGraphLaunch(c->exec, gpu->compute), "cudaGraphLaunch");
}

static mpg_status driver_keys(mpg_gpu *gpu, mpg_random_key **keys) {
  if (!gpu->keys)
    MPG_TRY(driver_allocate(gpu, MPG_CAPTURE_KEYS * sizeof *gpu->keys, (void **)&gpu->keys));
  *keys = gpu->keys;
  return MPG_OK;
}
static mpg_status driver_write_keys(mpg_gpu *gpu, const mpg_random_key *keys, int count) {
  return mpg_cuda_write_keys(gpu->compute, keys, count, gpu->keys);
}

static mpg_status driver_lock(void *memory, size_t size) {
  return mpg_cuda_check(cudaHostRegister(memory, size, cudaHostRegisterPortable),
                        "page-locking of host memory");
}
static void driver_unlock(void *memory) {
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

static const char *driver_describe(mpg_gpu *gpu) { return gpu->description; }

const mpg_gpu_driver mpg_cuda_driver = {
    .count = driver_count,
    .open = driver_open,
    .reports = driver_reports,
    .close = driver_close,
    .attach = driver_attach,
    .stream = driver_stream,
    .allocate = driver_allocate,
    .free = driver_free,
    .trim = driver_trim,
    .publish = driver_publish,
    .record = driver_record,
    .wait = driver_wait,
    .check = driver_check,
    .copy_to_host = driver_copy_to_host,
    .copy_from_host = driver_copy_from_host,
    .card = driver_card,
    .arrivals = driver_arrivals,
    .received = driver_received,
    .arrived = driver_arrived,
    .follow_default = driver_follow_default,
    .settle = driver_settle,
    .finish = driver_finish,
    .copy = driver_copy,
    .memory = driver_memory,
    .lock = driver_lock,
    .unlock = driver_unlock,
    .capture_begin = driver_capture_begin,
    .capture_void = driver_capture_void,
    .capture_end = driver_capture_end,
    .capture_run = driver_capture_run,
    .capture_free = driver_capture_free,
    .keys = driver_keys,
    .write_keys = driver_write_keys,
    .collectives = driver_collectives,
    .communicators = &mpg_cuda_communicators,
    .library = driver_library,
    .describe = driver_describe,
};
