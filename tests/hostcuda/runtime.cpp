// Emulates devices, streams, events, graphs and memory. A stream is a thread with a queue.
// Settings: HOSTCUDA_DEVICES (number of cards, default 2), HOSTCUDA_MEMORY (bytes per card, default
// 4 GiB), HOSTCUDA_DELAY (maximum random delay of a copy from the host in microseconds, default 0),
// HOSTCUDA_REUSE=1 (freed memory is reused by the next allocation of its size), HOSTCUDA_LOCKED
// (maximum size of a range of host memory that can be page-locked), HOSTCUDA_STREAM_WRITES=0
// (streams cannot write values).
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cuda_runtime.h"
#include "fibers.h"

namespace {

struct card {
  std::atomic<bool> broken{false};
  std::atomic<long> launches_left{-1}; // kernels until the card breaks; -1 for never
  std::atomic<size_t> used{0};
};
card cards[64];

long setting(const char *name, long standard) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : standard;
}
int num_cards() { return (int)std::min(setting("HOSTCUDA_DEVICES", 2), 64L); }
size_t capacity() { return (size_t)setting("HOSTCUDA_MEMORY", 4L << 30); }

thread_local int current_card;
thread_local cudaError_t last_error;
cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
cudaError_t state_of(int device) {
  return cards[device].broken ? cudaErrorIllegalAddress : cudaSuccess;
}

std::atomic<long> num_synchronized, num_captures, num_instantiated, num_updated, num_graphs,
    num_launched, num_specialised, num_attributes, num_locked, num_direct, num_settled, num_refused;

// Number of running kernels, and its maximum so far.
std::atomic<long> num_running, most_running;
struct running_kernel {
  running_kernel() {
    long now = ++num_running, most = most_running;
    while (now > most && !most_running.compare_exchange_weak(most, now)) continue;
    static const long least = setting("HOSTCUDA_KERNEL", 0);
    if (least) usleep((useconds_t)least);
  }
  ~running_kernel() { num_running--; }
};

struct moment { // one cudaEventRecord; done when the stream reaches it
  std::mutex lock;
  std::condition_variable reached;
  bool done = false;
  void reach() {
    std::lock_guard<std::mutex> guard(lock);
    done = true;
    reached.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> guard(lock);
    reached.wait(guard, [this] { return done; });
  }
};

// Bytes that a pool has reserved on its card, and the part in use. The pool keeps freed memory up
// to `threshold`, as CUDA does, and reuses it for allocations of any size. Guarded by memory_lock.
struct pool_use {
  int device;
  size_t reserved = 0, used = 0, threshold = 0;
};

struct allocation {
  size_t size;
  int device;
  pool_use *pool; // null if from cudaMalloc
};
std::mutex memory_lock;
std::map<char *, allocation> &allocations() {
  static auto *all = new std::map<char *, allocation>;
  return *all;
}

// Freed memory by card and size, for HOSTCUDA_REUSE. Guarded by memory_lock.
std::map<std::pair<int, size_t>, std::vector<void *>> &freed() {
  static auto *all = new std::map<std::pair<int, size_t>, std::vector<void *>>;
  return *all;
}
bool reuses() {
  static const bool set = setting("HOSTCUDA_REUSE", 0);
  return set;
}
bool take_freed(void **memory, size_t size, int device) {
  std::lock_guard<std::mutex> guard(memory_lock);
  auto at = freed().find({device, size});
  if (at == freed().end() || at->second.empty()) return false;
  *memory = at->second.back();
  at->second.pop_back();
  return true;
}

cudaError_t take(void **memory, size_t size, int device, pool_use *pool = nullptr) {
  if (state_of(device) != cudaSuccess) return state_of(device);
  {
    std::lock_guard<std::mutex> guard(memory_lock);
    size_t kept = pool ? pool->reserved - pool->used : 0, more = size > kept ? size - kept : 0;
    if (cards[device].used + more > capacity()) return cudaErrorMemoryAllocation;
    cards[device].used += more;
    if (pool) {
      pool->reserved += more;
      pool->used += size;
    }
  }
  if (!take_freed(memory, size, device) && posix_memalign(memory, 256, size ? size : 1)) abort();
  memset(*memory, 0xcb, std::min(size, (size_t)1 << 20)); // makes use of uninitialized data visible
  std::lock_guard<std::mutex> guard(memory_lock);
  allocations()[(char *)*memory] = {size, device, pool};
  return cudaSuccess;
}

// Returns unused memory above `keep` bytes to the card. The caller holds memory_lock.
void trim(pool_use *pool, size_t keep) {
  size_t least = std::max(pool->used, keep);
  if (pool->reserved <= least) return;
  cards[pool->device].used -= pool->reserved - least;
  pool->reserved = least;
}

cudaError_t give(void *memory) {
  if (!memory) return cudaSuccess;
  std::lock_guard<std::mutex> guard(memory_lock);
  auto at = allocations().find((char *)memory);
  if (at == allocations().end()) return cudaErrorInvalidValue;
  if (pool_use *pool = at->second.pool) {
    pool->used -= at->second.size;
    trim(pool, pool->threshold);
  } else {
    cards[at->second.device].used -= at->second.size;
  }
  if (reuses())
    freed()[{at->second.device, at->second.size}].push_back(memory);
  else
    free(memory);
  allocations().erase(at);
  return cudaSuccess;
}

} // namespace

struct CUgraph_st { // captured tasks, in order
  std::deque<std::function<void()>> tasks;
};

// Number of captures to invalidate (hostcuda_spoil), and the number of tasks after which to do it.
static std::atomic<long> to_spoil, spoil_after;

struct CUstream_st {
  int device;
  bool blocking = true;           // true if the legacy stream waits for it
  CUgraph_st *captured = nullptr; // during a capture; used by one thread only
  std::atomic<bool> capturing{false}, spoiled{false};
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool running = false, started = false;

  cudaError_t put(std::function<void()> task) {
    if (state_of(device) != cudaSuccess) return state_of(device);
    if (captured) {
      if (spoiled) return cudaErrorStreamCaptureInvalidated;
      captured->tasks.push_back(std::move(task));
      if ((long)captured->tasks.size() == spoil_after && to_spoil > 0) {
        to_spoil--;
        spoiled = true;
      }
      return cudaSuccess;
    }
    std::lock_guard<std::mutex> guard(lock);
    tasks.push_back(std::move(task));
    if (!started) {
      started = true;
      std::thread([this] { work(); }).detach();
    }
    changed.notify_all();
    return cudaSuccess;
  }
  void work() {
    current_card = device;
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
      changed.wait(guard, [this] { return !tasks.empty(); });
      auto task = std::move(tasks.front());
      tasks.pop_front();
      running = true;
      guard.unlock();
      task();
      task = nullptr;
      guard.lock();
      running = false;
      if (tasks.empty()) changed.notify_all();
    }
  }
  bool idle() {
    std::lock_guard<std::mutex> guard(lock);
    return tasks.empty() && !running;
  }
  void drain() {
    std::unique_lock<std::mutex> guard(lock);
    changed.wait(guard, [this] { return tasks.empty() && !running; });
  }
};

static std::mutex streams_lock; // guards the list
static std::vector<cudaStream_t> &streams() {
  static auto *all = new std::vector<cudaStream_t>;
  return *all;
}
static cudaStream_t make_stream(int device) {
  auto *stream = new CUstream_st;
  stream->device = device;
  std::lock_guard<std::mutex> guard(streams_lock);
  streams().push_back(stream);
  return stream;
}
// Begins a call that waits for a card's streams: `all`, or only the blocking ones. If one of them
// is being captured, rejects the call and invalidates the capture, as CUDA does.
static cudaError_t disturb(int device, bool all) {
  cudaError_t error = cudaSuccess;
  std::lock_guard<std::mutex> guard(streams_lock);
  for (cudaStream_t stream : streams())
    if (stream->device == device && stream->capturing && (all || stream->blocking)) {
      stream->spoiled = true;
      error = cudaErrorStreamCaptureUnsupported;
    }
  num_refused += error != cudaSuccess;
  return error;
}
// Resolves cudaStreamLegacy, which is a constant, to the default stream of the current card.
static cudaStream_t named(cudaStream_t stream) {
  static cudaStream_t defaults[64];
  if (stream != cudaStreamLegacy) return stream;
  static std::mutex making;
  std::lock_guard<std::mutex> guard(making);
  cudaStream_t *made = &defaults[current_card];
  if (!*made) *made = make_stream(current_card);
  return *made;
}

struct CUevent_st {
  int device; // only streams of this device may record it
  std::mutex lock;
  std::shared_ptr<moment> latest; // null if never recorded
};

struct CUgraphExec_st {
  std::shared_ptr<std::deque<std::function<void()>>> tasks; // shared with launches in flight
};

struct CUmemPoolHandle_st {
  pool_use use;
};

// Queues work, which is skipped if the card is broken by then. Queued events and waits are not
// skipped, so that nothing hangs.
static cudaError_t put_work(cudaStream_t stream, std::function<void()> work) {
  stream = named(stream);
  return note(stream->put([stream, work = std::move(work)] {
    if (state_of(stream->device) == cudaSuccess) work();
  }));
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
  if (setting("HOSTCUDA_DRIVER", CUDART_VERSION) < CUDART_VERSION / 1000 * 1000)
    return note(cudaErrorInsufficientDriver);
  *count = num_cards();
  return note(*count ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = (int)setting("HOSTCUDA_DRIVER", CUDART_VERSION);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_cards()) return note(cudaErrorInvalidDevice);
  current_card = device;
  return note(state_of(device));
}
cudaError_t cudaGetDevice(int *device) {
  *device = current_card;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "host stand-in %d", device);
  // Processes have different cards (by UUID) unless HOSTCUDA_SHARED_CARDS is set.
  int number[] = {device, getenv("HOSTCUDA_SHARED_CARDS") ? 0 : (int)getpid()};
  memcpy(properties->uuid.bytes, number, sizeof number);
  properties->totalGlobalMem = capacity();
  properties->multiProcessorCount = 4;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  (void)device;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; return cudaSuccess;
  }
  return note(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize(void) {
  if (cudaError_t error = disturb(current_card, true)) return note(error);
  num_settled++;
  std::vector<cudaStream_t> all;
  {
    std::lock_guard<std::mutex> guard(streams_lock);
    for (cudaStream_t stream : streams())
      if (stream->device == current_card) all.push_back(stream);
  }
  for (cudaStream_t stream : all) stream->drain();
  return note(state_of(current_card));
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = capacity();
  *free_bytes = *total - cards[current_card].used;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    default: return "cudaErrorInvalidValue";
  }
}
const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    default: return "invalid argument";
  }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  *stream = make_stream(current_card);
  (*stream)->blocking = !(flags & cudaStreamNonBlocking);
  return note(state_of(current_card));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { // the thread continues to exist
  stream->drain();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->captured) return note(cudaErrorStreamCaptureUnsupported);
  num_synchronized++;
  stream->drain();
  return note(state_of(stream->device));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->captured) return note(cudaErrorStreamCaptureUnsupported);
  if (state_of(stream->device) != cudaSuccess) return note(state_of(stream->device));
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
// Not emulated in captures, where CUDA would join the event's stream to the capture.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  stream = named(stream);
  if (stream->captured) return note(cudaErrorStreamCaptureUnsupported);
  std::shared_ptr<moment> at;
  {
    std::lock_guard<std::mutex> guard(event->lock);
    at = event->latest;
  }
  return at ? note(stream->put([at] { at->wait(); })) : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return note(stream->put([=] { function(data); }));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = new CUevent_st;
  (*event)->device = current_card;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == cudaStreamLegacy)
    if (cudaError_t error = disturb(current_card, false)) return note(error);
  stream = named(stream);
  if (event->device != stream->device) return note(cudaErrorInvalidResourceHandle);
  if (stream->captured) return note(cudaErrorStreamCaptureUnsupported);
  auto at = std::make_shared<moment>();
  cudaError_t error = stream->put([at] { at->reach(); });
  if (error != cudaSuccess) return note(error);
  std::lock_guard<std::mutex> guard(event->lock);
  event->latest = at;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard<std::mutex> guard(event->lock);
  if (!event->latest) return cudaSuccess;
  std::lock_guard<std::mutex> inner(event->latest->lock);
  return event->latest->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<moment> at;
  {
    std::lock_guard<std::mutex> guard(event->lock);
    at = event->latest;
  }
  if (!at) return cudaSuccess;
  bool done;
  {
    std::lock_guard<std::mutex> guard(at->lock);
    done = at->done;
  }
  if (!done) num_synchronized++;
  at->wait();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode) {
  if (stream->captured || !stream->idle()) return note(cudaErrorInvalidValue);
  stream->captured = new CUgraph_st;
  stream->spoiled = false;
  stream->capturing = true;
  num_captures++;
  return note(state_of(stream->device));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = !stream->captured ? cudaStreamCaptureStatusNone
            : stream->spoiled ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  if (!stream->captured) return note(cudaErrorInvalidValue);
  stream->capturing = false;
  *graph = stream->captured;
  stream->captured = nullptr;
  if (stream->spoiled) {
    delete *graph;
    *graph = nullptr;
    return note(cudaErrorStreamCaptureInvalidated);
  }
  return note(state_of(stream->device));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<std::deque<std::function<void()>>>(graph->tasks)};
  num_instantiated++;
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *) {
  if (exec->tasks->size() != graph->tasks.size()) return note(cudaErrorGraphExecUpdateFailure);
  exec->tasks = std::make_shared<std::deque<std::function<void()>>>(graph->tasks);
  num_updated++;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  num_graphs++;
  return note(stream->put([tasks = exec->tasks] {
    for (auto &task : *tasks) task();
  }));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size) {
  return note(take(memory, size, current_card));
}
cudaError_t cudaFree(void *memory) { return note(give(memory)); }
cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned) {
  return cudaMallocHost(memory, size);
}
// The driver's host memory is not available in a forked child, hence MADV_DONTFORK.
cudaError_t cudaMallocHost(void **memory, size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), length = (size + 2 * page - 1) / page * page;
  char *made =
      (char *)mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return note(cudaErrorMemoryAllocation);
  madvise(made, length, MADV_DONTFORK);
  *(size_t *)made = length;
  *memory = made + page;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *memory) {
  char *made = (char *)memory - sysconf(_SC_PAGESIZE);
  munmap(made, *(size_t *)made);
  return cudaSuccess;
}
// Sizes of page-locked ranges by end address. Like CUDA, the functions fail in a forked child.
static std::mutex locked_lock;
static std::map<const char *, size_t> locked;
static const pid_t started_in = getpid();
static bool is_locked(const void *memory, size_t size) {
  std::lock_guard<std::mutex> guard(locked_lock);
  auto at = locked.upper_bound((const char *)memory);
  return at != locked.end() && at->first - at->second <= (const char *)memory &&
         (const char *)memory + size <= at->first;
}
cudaError_t cudaHostRegister(void *memory, size_t size, unsigned) {
  if (getpid() != started_in) return note(cudaErrorInitializationError);
  if ((size_t)setting("HOSTCUDA_LOCKED", 1L << 40) < size) return note(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> guard(locked_lock);
  auto next = locked.upper_bound((const char *)memory);
  if (next != locked.end() && next->first - next->second < (const char *)memory + size)
    return note(cudaErrorHostMemoryAlreadyRegistered);
  locked[(const char *)memory + size] = size;
  num_locked++;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *memory) {
  if (getpid() != started_in) return note(cudaErrorInitializationError);
  std::lock_guard<std::mutex> guard(locked_lock);
  auto at = locked.upper_bound((const char *)memory);
  if (at == locked.end() || at->first - at->second != memory)
    return note(cudaErrorHostMemoryNotRegistered);
  locked.erase(at);
  num_locked--;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory) {
  *attributes = {};
  if (is_locked(memory, 1)) attributes->type = cudaMemoryTypeHost;
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties) {
  *pool = new CUmemPoolHandle_st;
  (*pool)->use.device = properties->location.id;
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { // not deleted: its memory may be in use
  std::lock_guard<std::mutex> guard(memory_lock);
  trim(&pool->use, 0);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void *value) {
  pool->use.threshold = (size_t)*(uint64_t *)value; // the only attribute that is used
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc *, size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  std::lock_guard<std::mutex> guard(memory_lock);
  trim(&pool->use, keep);
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void **memory, size_t size, cudaMemPool_t pool, cudaStream_t) {
  return note(take(memory, size, pool->use.device, &pool->use));
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
  return note(stream->put([memory] { give(memory); }));
}
static void delay() {
  static const long most = setting("HOSTCUDA_DELAY", 0);
  static thread_local std::minstd_rand random{7};
  if (most) usleep((unsigned)(random() % (unsigned long)most));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  num_direct += (kind == cudaMemcpyHostToDevice && is_locked(from, size)) ||
                (kind == cudaMemcpyDeviceToHost && is_locked(to, size));
  return put_work(stream, [=] {
    if (kind == cudaMemcpyHostToDevice) delay();
    memmove(to, from, size);
  });
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size,
                                cudaStream_t stream) {
  return put_work(stream, [=] { memmove(to, from, size); });
}
cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream) {
  return put_work(stream, [=] { memset(memory, value, size); });
}
static std::mutex shared_lock;
static std::map<std::pair<const void *, int>, size_t> shared_bytes; // limit per kernel and card
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute, int value) {
  std::lock_guard<std::mutex> guard(shared_lock);
  num_attributes++;
  shared_bytes[{kernel, current_card}] = (size_t)value;
  return cudaSuccess;
}

static int write_value(cudaStream_t stream, unsigned long long address, uint64_t value, unsigned) {
  return put_work(stream, [=] { __atomic_store_n((uint64_t *)address, value, __ATOMIC_RELEASE); });
}
static int attribute(int *value, int which, int card) {
  *value = which == 122 && setting("HOSTCUDA_STREAM_WRITES", 1);
  return card >= 0 && card < num_cards() ? 0 : 1;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result) {
  if (!strcmp(symbol, "cuStreamWriteValue64"))
    *function = (void *)write_value;
  else if (!strcmp(symbol, "cuDeviceGetAttribute"))
    *function = (void *)attribute;
  else
    return note(cudaErrorNotSupported);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

void hostcuda_break(int device) { cards[device].broken = true; }
// For tests: begins or ends a capture on the current card, as by another library.
__attribute__((visibility("default"))) void hostcuda_capture_elsewhere(int begin) {
  static cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  if (begin) {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  } else {
    cudaStreamEndCapture(stream, &graph);
    delete graph;
  }
}
// For tests: invalidates each of the next `captures` captures after `after` tasks, as if another
// thread had synchronized the card.
__attribute__((visibility("default"))) void hostcuda_spoil(long captures, long after) {
  spoil_after = after;
  to_spoil = captures;
}
void hostcuda_break_after(int device, long launches) { cards[device].launches_left = launches; }
int hostcuda_captures(cudaStream_t stream) { return stream->captured != nullptr; }
cudaError_t hostcuda_put(cudaStream_t stream, void (*function)(const void *data), const void *data,
                         size_t size) {
  std::shared_ptr<void> copy(malloc(size), free);
  memcpy(copy.get(), data, size);
  return put_work(stream, [=] { function(copy.get()); });
}
int hostcuda_memory_card(const void *memory, size_t bytes) {
  std::lock_guard<std::mutex> guard(memory_lock);
  auto at = allocations().upper_bound((char *)memory);
  if (at == allocations().begin()) return -1;
  --at;
  return (char *)memory + bytes <= at->first + at->second.size ? at->second.device : -1;
}
int hostcuda_stream_card(cudaStream_t stream) { return stream->device; }
long hostcuda_count(const char *what) {
  const struct {
    const char *name;
    std::atomic<long> *count;
  } counts[] = {{"synchronize", &num_synchronized},
                {"capture", &num_captures},
                {"instantiate", &num_instantiated},
                {"update", &num_updated},
                {"graph", &num_graphs},
                {"launch", &num_launched},
                {"attribute", &num_attributes},
                {"specialised", &num_specialised},
                {"together", &most_running},
                {"locked", &num_locked},
                {"settle", &num_settled},
                {"refused", &num_refused},
                {"direct", &num_direct}};
  for (auto &one : counts)
    if (!strcmp(one.name, what)) return *one.count;
  return -1;
}

} // extern "C"

struct CUlib_st {
  void *handle;
};
struct CUkern_st { // `run` and `size`: generated by kernels/cuda/fusion/specialise.cu
  void (*run)(const void *argument);
  size_t size;
  void (*call)(void **arguments); // `call` and `sizes`: for user kernels, by libraries/nvrtc.cpp
  const unsigned long *sizes;
};
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, void *, void **, unsigned,
                                void *, void **, unsigned) {
  const char *path = (const char *)code;
  void *handle = *path == '/' ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!handle) return note(cudaErrorInvalidValue); // not a path: code of the real NVRTC
  *library = new CUlib_st{handle};
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  void *run = dlsym(library->handle, (std::string(name) + "_run").c_str()),
       *size = dlsym(library->handle, (std::string(name) + "_size").c_str());
  void *call = dlsym(library->handle, (std::string(name) + "_call").c_str()),
       *sizes = dlsym(library->handle, (std::string(name) + "_sizes").c_str());
  if (call && sizes) {
    *kernel =
        new CUkern_st{nullptr, 0, (void (*)(void **))call, ((const unsigned long *(*)())sizes)()};
    return cudaSuccess;
  }
  if (!run) run = dlsym(library->handle, name); // a kernel without arguments
  if (!run) return note(cudaErrorInvalidValue);
  *kernel = new CUkern_st{(void (*)(const void *))run, size ? *(const size_t *)size : 0, nullptr,
                          nullptr};
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *which,
                                void **arguments) {
  const CUkern_st *kernel = (const CUkern_st *)which;
  if (kernel->call) {
    std::vector<std::vector<char>> values;
    for (int i = 0; kernel->sizes[i]; i++)
      values.emplace_back((char *)arguments[i], (char *)arguments[i] + kernel->sizes[i]);
    return hostcuda_launch(config, [kernel, values] {
      std::vector<void *> places;
      for (const std::vector<char> &value : values) places.push_back((void *)value.data());
      kernel->call(places.data());
    });
  }
  std::shared_ptr<void> copy(malloc(kernel->size), free);
  memcpy(copy.get(), arguments[0], kernel->size);
  num_specialised++;
  return hostcuda_launch(config, [kernel, copy] { kernel->run(copy.get()); });
}

bool hostcuda_may_share(const void *kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return true;
  std::lock_guard<std::mutex> guard(shared_lock);
  auto found = shared_bytes.find({kernel, current_card});
  return found != shared_bytes.end() && found->second >= bytes;
}

cudaError_t hostcuda_launch(const cudaLaunchConfig_t *config, std::function<void()> thread) {
  const dim3 &grid = config->gridDim, &block = config->blockDim;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (!threads || threads > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || config->dynamicSmemBytes > 232448)
    return note(cudaErrorInvalidConfiguration);
  cudaStream_t stream = named(config->stream);
  if (stream->device != current_card) {
    fprintf(stderr,
            "hostcuda: a kernel is launched onto a stream of card %d while card %d is current\n",
            stream->device, current_card);
    abort();
  }
  num_launched++;
  return put_work(config->stream,
                  [config = *config, thread = std::move(thread), device = config->stream->device] {
                    if (cards[device].launches_left >= 0 &&
                        cards[device].launches_left-- == 0) { // emulates an illegal access
                      cards[device].broken = true;
                      return;
                    }
                    running_kernel running;
                    hostcuda_run(config, thread);
                  });
}
