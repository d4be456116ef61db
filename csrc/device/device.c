/* The device table and timelines: submission, signals and failures of work. */
#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"
#include "device/gpu/gpu.h"
#include "device/internal.h"
#include "device/rendezvous.h"
#include "device/pool.h"
#include "device/profiler.h"
#include "device/ranks/engine.h"

enum {
  /* Approximate number of queued submissions per device before wait_for_room waits. */
  RECENT = MPG_RECENT,
  /* Submissions between two reads of `completed`, whose cache line the worker writes. */
  LOOK_INTERVAL = 256,
  DEFAULT_SPIN_US = 50, /* about the time to wake a thread, for hosts and workers */
};

/* Runtime state: the device table and the settings. Host lock. */
static struct {
  mpg_device **devices;
  size_t capacity;
  int count;
  _Atomic(mpg_device *) newest; /* any thread */
  int fixed_threads;            /* per CPU device; 0 means that the cores are divided */
  mpg_engine_mode mode;
  int64_t idle_spin_ns;
  mpg_team_spin team_spin;
  bool poison_pools;
  mpg_point_list points; /* for the work being queued */
  _Atomic(int) spinning; /* idle workers that poll for work; any thread */
  bool initialized, shut_down, fork_prepared;
  bool exiting;            /* libraries loaded after this one have been torn down */
  pthread_mutex_t opening; /* held while the table grows, and across a fork */
} table = {.opening = PTHREAD_MUTEX_INITIALIZER};

/* --- Table ------------------------------------------------------------------------------------ */

int mpg_device_count(void) { return table.count; }
mpg_device *mpg_device_at(int ordinal) { return table.devices[ordinal]; }
mpg_device *mpg_device_newest(void) {
  return atomic_load_explicit(&table.newest, memory_order_acquire);
}

int mpg_gpu_count(const char **reason) {
  const char *why;
  if (!reason) reason = &why;
  const mpg_gpu_library *library = mpg_gpu_library_get(reason);
  return library ? library->driver->count(reason) : 0;
}

const mpg_library *mpg_gpu_vendor_library(int number) {
  const char *reason;
  return mpg_gpu_count(&reason) ? mpg_gpu_library_get(&reason)->driver->library(number) : NULL;
}

mpg_status mpg_gpu_collectives(const mpg_device_id *ids, int count) {
  enum { MOST = 64 };
  const char *reason;
  int indices[MOST];
  for (int i = 0; i < count; i++) {
    if (i == MOST)
      return mpg_fail(MPG_NOT_IMPLEMENTED, "NCCL: at most %d GPUs can take part in a collective",
                      MOST);
    if (ids[i].rank)
      return mpg_fail(
          MPG_NOT_IMPLEMENTED,
          "NCCL works only between GPUs of one process; use transport='local' between ranks");
    if (ids[i].type != MPG_GPU)
      return mpg_fail(MPG_NOT_IMPLEMENTED,
                      "NCCL works only between GPUs, but %s is not a GPU; use transport='local' "
                      "between other devices",
                      mpg_device_id_text(ids[i]).text);
    indices[i] = ids[i].index;
  }
  const mpg_gpu_library *library = mpg_gpu_library_get(&reason);
  return library ? library->driver->collectives(indices, count) : mpg_fail(MPG_ERROR, "%s", reason);
}

static bool is_cpu(const mpg_device *device) {
  return !device->remote && (device->id.type == MPG_CPU || device->id.type == MPG_CPU_SIDE);
}

/* Divides the cores among the CPU devices. Counts the devices of this process's rank or those
 * without a rank, whichever are more: work shared by all ranks runs on the former, local work on
 * the latter. */
static void share_threads(void) {
  int of_rank = 0, own = 0;
  for (int i = 0; i < table.count; i++) {
    const mpg_device *device = table.devices[i];
    if (device->id.type == MPG_CPU && !device->remote) device->id.rank ? of_rank++ : own++;
  }
  int cpus = of_rank > own ? of_rank : own;
  int threads = table.fixed_threads ? table.fixed_threads : mpg_machine_cores() / (cpus ? cpus : 1);
  if (threads < 1) threads = 1;
  for (int i = 0; i < table.count; i++)
    if (table.devices[i]->id.type == MPG_CPU)
      atomic_store_explicit(&table.devices[i]->num_threads, threads, memory_order_relaxed);
}

mpg_status mpg_device_set_threads(int n) {
  if (n < 0 || n > 4096)
    return mpg_fail(
        MPG_VALUE_ERROR,
        "threads per CPU device must be 1 to 4096, or 0 to divide the cores evenly; got %d", n);
  table.fixed_threads = n;
  share_threads();
  return MPG_OK;
}

static mpg_status open_another(mpg_device_id id, const mpg_backend *backend, mpg_device **result) {
  mpg_status status = mpg_grow((void **)&table.devices, &table.capacity, (size_t)table.count + 1,
                               sizeof(mpg_device *));
  if (status != MPG_OK) return status;
  mpg_device *device = mpg_aligned_malloc(_Alignof(mpg_device), sizeof *device);
  if (!device) return mpg_out_of_host_memory(sizeof *device);
  memset(device, 0, sizeof *device);
  device->id = id;
  device->ordinal = table.count;
  device->backend = backend;
  device->remote = backend == &mpg_remote_backend;
  device->completed = &device->own_completed;
  atomic_store_explicit(&device->num_threads, 1, memory_order_relaxed);
  device->name = mpg_device_id_text(id);
  device->recent = mpg_calloc(RECENT, sizeof *device->recent);
  if (!device->recent) {
    status = mpg_out_of_host_memory(RECENT * sizeof *device->recent);
    goto fail;
  }
  MPG_GOTO(mpg_failures_open(device));
  MPG_GOTO(mpg_pool_create(device, &device->pool));
  MPG_GOTO(device->backend->open(device));
  table.devices[table.count++] = device;
  device->older = mpg_device_newest();
  atomic_store_explicit(&table.newest, device, memory_order_release);
  share_threads();
  *result = device;
  return MPG_OK;
fail:
  mpg_free(device->backend_state); /* no worker has been started */
  mpg_pool_destroy(device->pool);
  mpg_failures_close(device);
  mpg_free(device->recent);
  mpg_free(device);
  return status;
}

/* Holds table.opening, so a fork by a thread without the host lock sees the device table in a
 * consistent state. */
static mpg_status open_device(mpg_device_id id, const mpg_backend *backend, mpg_device **result) {
  pthread_mutex_lock(&table.opening);
  mpg_status status = open_another(id, backend, result);
  pthread_mutex_unlock(&table.opening);
  return status;
}

static mpg_status open_gpu(mpg_device_id id, mpg_device **result) {
  const char *reason;
  const mpg_gpu_library *library = mpg_gpu_library_get(&reason);
  int count = library ? library->driver->count(&reason) : 0;
  if (!count)
    return mpg_fail(MPG_ERROR, "%s cannot be used: %s", mpg_device_id_text(id).text, reason);
  if (id.index >= count)
    return mpg_fail(MPG_ERROR, "%s does not exist: GPUs are numbered 0 to %d",
                    mpg_device_id_text(id).text, count - 1);
  return open_device(id, &mpg_gpu_backend, result);
}

/* Opens a device of another process. Its programs are compiled in this process as well. */
static mpg_status open_remote(mpg_device_id id, mpg_device **result) {
  const char *reason;
  if (id.type == MPG_GPU && !mpg_gpu_library_get(&reason))
    return mpg_fail(MPG_ERROR, "%s cannot be used by rank %d, which also compiles its programs: %s",
                    mpg_device_id_text(id).text, mpg_ranks_own(), reason);
  return open_device(id, &mpg_remote_backend, result);
}

mpg_status mpg_device_get(mpg_device_id id, mpg_device **device) {
  if (id.type == MPG_CPU_PINNED || id.type == MPG_CPU_SHARED) id.type = MPG_CPU;
  for (int i = 0; i < table.count; i++) {
    mpg_device *known = table.devices[i];
    if (mpg_device_id_equal(known->id, id)) {
      *device = known;
      return MPG_OK;
    }
  }
  if (id.index < 0)
    return mpg_fail(MPG_ERROR, "device index %d is negative; indices start at 0", id.index);
  if (id.rank) {
    if (mpg_device_rank(id) >= mpg_ranks_count())
      return mpg_fail(MPG_VALUE_ERROR, "%s: rank %d does not exist; this program has %d ranks",
                      mpg_device_id_text(id).text, mpg_device_rank(id), mpg_ranks_count());
    if (mpg_device_rank(id) != mpg_ranks_own()) return open_remote(id, device);
  }
  if (id.type == MPG_CPU || id.type == MPG_CPU_SIDE)
    return open_device(
        id, table.mode == MPG_ENGINE_SHUFFLE ? &mpg_shuffle_backend : &mpg_cpu_backend, device);
  if (id.type == MPG_GPU) return open_gpu(id, device);
  return mpg_fail(MPG_ERROR, "unknown device type number %d", id.type);
}

mpg_status mpg_device_side(mpg_device *device, mpg_device **side) {
  *side = NULL;
  return device->id.type == MPG_CPU
             ? mpg_device_get((mpg_device_id){MPG_CPU_SIDE, device->id.index, device->id.rank},
                              side)
             : MPG_OK;
}

/* --- Submission ------------------------------------------------------------------------------- */

/* Waits if the queue is nearly full, with the host lock released; may be interrupted. */
static mpg_status wait_for_room(mpg_device *device) {
  uint64_t count = device->submissions;
  if (count % LOOK_INTERVAL || count < RECENT) return MPG_OK;
  if (mpg_tick_reached(device, device->recent[(count + LOOK_INTERVAL) % RECENT].last))
    return MPG_OK;
  return mpg_room_wait(device, device->recent[(count + RECENT / 2) % RECENT].last);
}

static void discard(const mpg_submission *submission) {
  if (submission->discard) submission->discard((void *)submission->payload);
}

static mpg_status refuse_after_shutdown(const mpg_device *device) {
  return mpg_fail(MPG_ERROR, "%s does not accept more work: mpgluon has been shut down",
                  mpg_device_text(device));
}

/* Advances device->submitted on success. */
static mpg_status enqueue(mpg_device *device, const mpg_submission *submission) {
  mpg_submission work = *submission;
  if (work.ticks == 0) work.ticks = 1;
  MPG_TRY(device->backend->enqueue(device, &work, device->submitted + 1));
  device->submitted += work.ticks;
  return MPG_OK;
}

static void remember(mpg_device *device, const mpg_submission *work, mpg_tick last) {
  int64_t now = __builtin_expect(mpg_profiler_on(), 0) ? mpg_clock_ns() : 0;
  device->recent[device->submissions++ % RECENT] = (mpg_submitted){
      last, work->name, work->origin, work->scope, work->stage, work->micro_batch, now};
}

const mpg_submitted *mpg_device_latest(const mpg_device *device) {
  return device->submissions ? &device->recent[(device->submissions - 1) % RECENT] : NULL;
}

static void publish(mpg_device *device, const mpg_submission *submission, mpg_tick last) {
  remember(device, submission, last);
  device->backend->publish(device);
}

/* Separate from publish, which is cheap. Waking a worker is a system call, which must not delay
 * publication to the other devices. */
static void wake(mpg_device *device) {
  if (device->backend->wake) device->backend->wake(device);
}

/* Queues and publishes all submissions, or none. Discards payloads on failure. No other thread runs
 * meanwhile. */
static mpg_status queue_all(mpg_device *const *devices, const mpg_submission *submissions,
                            int count, mpg_tick *last) {
  mpg_status status = MPG_OK;
  int queued = 0;
  if (table.shut_down) MPG_GOTO(refuse_after_shutdown(devices[0]));
  for (; queued < count; queued++) {
    MPG_GOTO(enqueue(devices[queued], &submissions[queued]));
    last[queued] = devices[queued]->submitted;
  }
  for (int i = 0; i < count; i++) publish(devices[i], &submissions[i], last[i]);
  for (int i = 0; i < count; i++) wake(devices[i]);
  return MPG_OK;
fail:
  for (int i = 0; i < queued; i++) {
    devices[i]->submitted -= submissions[i].ticks ? submissions[i].ticks : 1;
    devices[i]->backend->retract(devices[i]);
  }
  for (int i = 0; i < count; i++) discard(&submissions[i]);
  return status;
}

/* In synchronous mode, waits until the queued work is done. */
static mpg_status finish(mpg_device *const *devices, const mpg_tick *last, int count) {
  if (__builtin_expect(table.mode != MPG_ENGINE_SYNC, 1)) return MPG_OK;
  for (int i = 0; i < count; i++) mpg_tick_wait(devices[i], last[i], true);
  for (int i = 0; i < count; i++) MPG_TRY(mpg_device_failure(devices[i], last[i]));
  return MPG_OK;
}

/* Checks all devices repeatedly until no check had to wait, because the other queues can fill
 * during a wait. */
static mpg_status make_room(mpg_device *const *devices, int count) {
  uint64_t before;
  do {
    before = mpg_host_turns();
    for (int i = 0; i < count; i++) MPG_TRY(wait_for_room(devices[i]));
  } while (count > 1 && before != mpg_host_turns());
  return MPG_OK;
}

mpg_status mpg_device_queue(const mpg_queuing *queuing) {
  mpg_submission submissions[MPG_MOST_TOGETHER];
  mpg_tick last[MPG_MOST_TOGETHER];
  bool done = false;
  MPG_ASSERT(queuing->count <= MPG_MOST_TOGETHER);
  MPG_TRY(make_room(queuing->devices, queuing->count));
  uint64_t turns = mpg_host_turns();
  table.points.begin = table.points.count = 0;
  MPG_TRY(queuing->prepare(queuing->state, &table.points, submissions, &done));
  if (!done) {
    MPG_TRY(queue_all(queuing->devices, submissions, queuing->count, last));
    queuing->note(queuing->state, last);
  }
  mpg_host_check_turns(turns);
  return done ? MPG_OK : finish(queuing->devices, last, queuing->count);
}

/* --- Idle workers ----------------------------------------------------------------------------- */

mpg_team_spin mpg_team_spin_setting(void) { return table.team_spin; }
bool mpg_pool_poison_setting(void) { return table.poison_pools; }
int64_t mpg_idle_spin_ns(void) { return table.idle_spin_ns; }
bool mpg_idle_spin_begin(void) {
  return atomic_fetch_add_explicit(&table.spinning, 1, memory_order_relaxed) + 1 <
         mpg_machine_cores();
}
void mpg_idle_spin_end(void) {
  atomic_fetch_sub_explicit(&table.spinning, 1, memory_order_relaxed);
}

/* --- Copies ----------------------------------------------------------------------------------- */

mpg_status mpg_device_copy(mpg_device *running, mpg_device *to, void *target, mpg_device *from,
                           const void *source, size_t size) {
  if (!size) return MPG_OK;
  if (running->backend->run_copy)
    return running->backend->run_copy(running, to, target, from, source, size);
  if (from->backend->host_accessible) return to->backend->copy_from_host(to, target, source, size);
  MPG_ASSERT(to->backend->host_accessible);
  return from->backend->copy_to_host(from, target, source, size);
}

/* --- Scratch ---------------------------------------------------------------------------------- */

static size_t scratch_total(const mpg_device *device) {
  size_t total = 0;
  for (int i = 0; i < MPG_SCRATCH_SLOTS; i++) total += device->scratch[i].size;
  return total;
}

static void free_slot(mpg_device *device, mpg_scratch_slot slot) {
  if (!device->scratch[slot].size) return;
  device->backend->free(device, device->scratch[slot].memory, device->scratch[slot].size);
  device->scratch[slot].memory = NULL;
  device->scratch[slot].size = 0;
  mpg_pool_resize_scratch(device->pool, scratch_total(device)); /* shrinking cannot fail */
}

void mpg_device_free_scratch(mpg_device *device) {
  for (int i = 0; i < MPG_SCRATCH_SLOTS; i++) free_slot(device, (mpg_scratch_slot)i);
}

mpg_status mpg_device_memory(mpg_device *device, size_t *free_bytes, size_t *total) {
  if (!device->backend->memory)
    return mpg_fail(MPG_VALUE_ERROR, "%s is not a GPU; only GPUs have memory of their own",
                    mpg_device_text(device));
  MPG_TRY(device->backend->memory(device, free_bytes, total));
  mpg_memory_stats stats;
  mpg_pool_stats(device->pool, &stats);
  if (stats.limit && stats.limit < *total) {
    size_t left = stats.limit > stats.held ? stats.limit - stats.held : 0;
    *total = stats.limit;
    if (left < *free_bytes) *free_bytes = left;
  }
  return MPG_OK;
}

/* Earlier work may still use cached blocks when the running work starts, so draining can free
 * more. */
static mpg_status allocate_scratch(mpg_device *device, size_t size, void **memory) {
  const mpg_backend *backend = device->backend;
  mpg_status status;
  for (bool drained = !backend->drain;
       (status = backend->allocate(device, size, memory)) == MPG_DEVICE_OUT_OF_MEMORY;) {
    if (mpg_pool_relieve(device->pool, size)) continue;
    if (drained) break;
    backend->drain(device);
    drained = true;
  }
  return status;
}

void *mpg_device_scratch_slot(mpg_device *device, mpg_scratch_slot slot, size_t size) {
  _Static_assert(sizeof device->scratch / sizeof device->scratch[0] == MPG_SCRATCH_SLOTS,
                 "a buffer for each slot");
  if (size <= device->scratch[slot].size && device->scratch[slot].memory)
    return device->scratch[slot].memory;
  size_t rounded, total;
  if (device->scratch_stays) {
    mpg_fail(MPG_ERROR, "%s: scratch cannot grow while work is captured", mpg_device_text(device));
    return NULL;
  }
  free_slot(device, slot);
  if (!mpg_size_add(size ? size : 1, 4095, &rounded) ||
      !mpg_size_add(rounded &= ~(size_t)4095, scratch_total(device), &total)) {
    mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "%s is out of memory: asked for %zu bytes of scratch",
             mpg_device_text(device), size);
    return NULL;
  }
  if (mpg_pool_resize_scratch(device->pool, total) != MPG_OK) return NULL;
  mpg_status status = allocate_scratch(device, rounded, &device->scratch[slot].memory);
  if (status != MPG_OK) {
    device->scratch[slot].memory = NULL;
    mpg_pool_resize_scratch(device->pool, scratch_total(device));
    if (status == MPG_DEVICE_OUT_OF_MEMORY)
      mpg_fail(status,
               "%s is out of memory: asked for %zu bytes of scratch for a kernel. Use smaller "
               "batches, or spread the model over more devices",
               mpg_device_text(device), size);
    return NULL;
  }
  device->scratch[slot].size = rounded;
  return device->scratch[slot].memory;
}

/* --- Modes, fork, exit ------------------------------------------------------------------------ */

mpg_engine_mode mpg_engine_get_mode(void) { return table.mode; }

mpg_status mpg_engine_set_mode(mpg_engine_mode mode, uint64_t seed) {
  for (int i = 0; i < table.count; i++)
    MPG_TRY(mpg_point_wait(
        (mpg_point){.device = table.devices[i], .tick = table.devices[i]->submitted}, false));
  const mpg_backend *backend = mode == MPG_ENGINE_SHUFFLE ? &mpg_shuffle_backend : &mpg_cpu_backend;
  if (mode == MPG_ENGINE_SHUFFLE) mpg_shuffle_seed(seed);
  for (int i = 0; i < table.count; i++)
    if (is_cpu(table.devices[i]) && mode == MPG_ENGINE_SHUFFLE)
      MPG_TRY(backend->open(table.devices[i]));
  for (int i = 0; i < table.count; i++)
    if (is_cpu(table.devices[i])) table.devices[i]->backend = backend;
  table.mode = mode;
  return MPG_OK;
}

/* A forked child has no workers. So all work finishes before the fork, and locks are held across
 * it, which gives the child a consistent state. */
static void before_fork(void) {
  /* The running work forks, so its own device never becomes idle. */
  if (mpg_worker_device()) return;
  pthread_mutex_lock(&table.opening);
  for (int i = 0; i < table.count; i++)
    mpg_tick_wait(table.devices[i], table.devices[i]->submitted, false);
  for (int i = 0; i < table.count; i++) {
    mpg_failures_fork_prepare(table.devices[i]);
    table.devices[i]->backend->fork_prepare(table.devices[i]);
  }
  mpg_engine_fork_prepare();
  table.fork_prepared = true;
}

static void after_fork(bool child) {
  if (child) atomic_store_explicit(&table.spinning, 0, memory_order_relaxed);
  if (!table.fork_prepared) {
    if (child) table.shut_down = true;
    return;
  }
  table.fork_prepared = false;
  mpg_engine_fork_done(child);
  for (int i = table.count - 1; i >= 0; i--) {
    table.devices[i]->backend->fork_done(table.devices[i], child);
    mpg_failures_fork_done(table.devices[i], child);
  }
  pthread_mutex_unlock(&table.opening);
}
static void after_fork_in_parent(void) { after_fork(false); }
static void after_fork_in_child(void) { after_fork(true); }

/* Reads an integer setting. *value is unchanged if it is absent or empty. */
static mpg_status setting(const char *name, long long low, long long high, long long *value) {
  const char *text = getenv(name);
  if (!text || !*text) return MPG_OK;
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (errno || *end || parsed < low || parsed > high)
    return mpg_fail(MPG_VALUE_ERROR,
                    "environment variable %s is '%.80s'; it must be an integer from %lld to %lld",
                    name, text, low, high);
  *value = parsed;
  return MPG_OK;
}

static mpg_status read_settings(void) {
  long long threads = 0, seed = 0, spin = DEFAULT_SPIN_US, poison = 0;
  MPG_TRY(setting("MPGLUON_SPIN", 0, 1000, &spin));
  table.idle_spin_ns = mpg_machine_cores() > 1 ? spin * 1000 : 0;
  MPG_TRY(setting("MPGLUON_CPU_THREADS", 0, 4096, &threads));
  MPG_TRY(setting("MPGLUON_ENGINE_SEED", 0, INT64_MAX, &seed));
  MPG_TRY(setting("MPGLUON_POOL_POISON", 0, 1, &poison));
  table.poison_pools = poison;
  mpg_engine_mode mode = MPG_ENGINE_ASYNC;
  const char *engine = getenv("MPGLUON_ENGINE"), *mxnet = getenv("MXNET_ENGINE_TYPE");
  if (engine && *engine) {
    if (strcmp(engine, "sync") == 0)
      mode = MPG_ENGINE_SYNC;
    else if (strcmp(engine, "shuffle") == 0)
      mode = MPG_ENGINE_SHUFFLE;
    else if (strcmp(engine, "async") != 0)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "environment variable MPGLUON_ENGINE is '%.80s'; it must be async, sync or shuffle",
          engine);
  } else if (mxnet && strcmp(mxnet, "NaiveEngine") == 0) {
    mode = MPG_ENGINE_SYNC;
  }
  table.fixed_threads = (int)threads;
  const char *team_spin = getenv("MPGLUON_TEAM_SPIN");
  if (team_spin && *team_spin) {
    if (strcmp(team_spin, "long") == 0)
      table.team_spin = MPG_TEAM_SPIN_LONG;
    else if (strcmp(team_spin, "short") == 0)
      table.team_spin = MPG_TEAM_SPIN_SHORT;
    else if (strcmp(team_spin, "auto") != 0)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "environment variable MPGLUON_TEAM_SPIN is '%.80s'; it must be auto, short or long",
          team_spin);
  }
  return mpg_engine_set_mode(mode, (uint64_t)seed);
}

static void shut_down_at_exit(void) { /* if the host has not shut down earlier */
  table.exiting = true;
  mpg_device_shutdown();
}

mpg_status mpg_device_init(void) {
  if (table.initialized) return MPG_OK;
  MPG_TRY(read_settings());
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0 ||
      atexit(shut_down_at_exit) != 0)
    return mpg_out_of_host_memory(0);
  table.initialized = true;
  return MPG_OK;
}

void mpg_device_free_kernel_cache(mpg_device *device) {
  if (!device->kernel_cache || table.exiting) return;
  device->kernel_cache_free(device->kernel_cache);
  device->kernel_cache = NULL;
}

void mpg_device_shutdown(void) {
  if (table.shut_down) return;
  table.shut_down = true;
  mpg_rendezvous_close();
  for (int i = 0; i < table.count; i++) table.devices[i]->backend->stop(table.devices[i]);
  for (int i = 0; i < table.count; i++) table.devices[i]->backend->close(table.devices[i]);
}
