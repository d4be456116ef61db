/* Startup and shutdown: opens devices with their backends, divides the cores among them, sets the
 * engine's mode, and handles forks and the exit. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/file_memory.h"
#include "device/gpu/gpu.h"
#include "device/internal.h"
#include "device/pool.h"
#include "device/ranks/engine.h"
#include "device/rendezvous.h"

/* Runtime state, guarded by the host lock. */
static struct {
  int fixed_threads; /* threads per CPU device; 0 divides the cores among devices */
  bool initialized, fork_prepared;
  pthread_mutex_t opening; /* held while a device is added to the table, and during a fork */
} runtime = {.opening = PTHREAD_MUTEX_INITIALIZER};

/* --- Devices ---------------------------------------------------------------------------------- */

static bool is_cpu(const mpg_device *device) {
  return !device->remote && device->backend != &mpg_lost_backend &&
         (device->id.type == MPG_CPU || device->id.type == MPG_CPU_SIDE);
}

/* Divides the cores among the CPU devices. A device id of this process either names its rank (for
 * work that all ranks submit) or names no rank (for local work). Devices of only one of these two
 * kinds are assumed to be busy at a time, so the cores are divided by the larger count. Devices of
 * directories don't count: they mostly copy, and offloading to them must not change the number of
 * threads, and so the bits, of the other devices. */
static void share_threads(void) {
  int of_rank = 0, own = 0;
  for (int i = 0; i < mpg_device_count(); i++) {
    const mpg_device *device = mpg_device_at(i);
    if (device->id.type == MPG_CPU && !device->remote && !mpg_device_directory(device))
      device->id.rank ? of_rank++ : own++;
  }
  int cpus = of_rank > own ? of_rank : own;
  int threads =
      runtime.fixed_threads ? runtime.fixed_threads : mpg_machine_cores() / (cpus ? cpus : 1);
  if (threads < 1) threads = 1;
  for (int i = 0; i < mpg_device_count(); i++)
    if (mpg_device_at(i)->id.type == MPG_CPU)
      atomic_store_explicit(&mpg_device_at(i)->num_threads, threads, memory_order_relaxed);
}

mpg_status mpg_device_set_threads(int n) {
  if (n < 0 || n > 4096)
    return mpg_fail(
        MPG_VALUE_ERROR,
        "threads per CPU device must be 1 to 4096, or 0 to divide the cores evenly; got %d", n);
  runtime.fixed_threads = n;
  share_threads();
  return MPG_OK;
}

/* Opens a device, which takes ownership of `directory` if it is not NULL. */
static mpg_status open_another(mpg_device_id id, const mpg_backend *backend, char *directory,
                               mpg_device **result) {
  MPG_TRY(mpg_device_table_reserve());
  mpg_status status = MPG_OK;
  mpg_device *device = mpg_aligned_malloc(_Alignof(mpg_device), sizeof *device);
  if (!device) return mpg_out_of_host_memory(sizeof *device);
  memset(device, 0, sizeof *device);
  device->id = id;
  device->ordinal = mpg_device_count();
  device->backend = backend;
  device->remote = backend == &mpg_remote_backend;
  device->completed = &device->own_completed;
  atomic_store_explicit(&device->num_threads, 1, memory_order_relaxed);
  device->name = mpg_device_id_text(id);
  device->recent = mpg_calloc(MPG_RECENT, sizeof *device->recent);
  if (!device->recent) {
    status = mpg_out_of_host_memory(MPG_RECENT * sizeof *device->recent);
    goto fail;
  }
  MPG_GOTO(mpg_failures_open(device));
  MPG_GOTO(mpg_pool_create(device, &device->pool));
  MPG_GOTO(device->backend->open(device));
  if (directory) mpg_device_set_directory(device, directory);
  mpg_device_table_add(device);
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

/* Opens a device while holding runtime.opening, so that a fork by a thread that lacks the host lock
 * still copies a consistent device table. */
static mpg_status open_device(mpg_device_id id, const mpg_backend *backend, char *directory,
                              mpg_device **result) {
  pthread_mutex_lock(&runtime.opening);
  mpg_status status = open_another(id, backend, directory, result);
  pthread_mutex_unlock(&runtime.opening);
  return status;
}

static const mpg_backend *cpu_backend(void) {
  return mpg_engine_get_mode() == MPG_ENGINE_SHUFFLE ? &mpg_shuffle_backend : &mpg_cpu_backend;
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
  return open_device(id, &mpg_gpu_backend, NULL, result);
}

/* Opens a device of another process. All ranks compile its programs, so a GPU requires the GPU
 * library in this process. */
static mpg_status open_remote(mpg_device_id id, mpg_device **result) {
  const char *reason;
  if (id.type == MPG_GPU && !mpg_gpu_library_get(&reason))
    return mpg_fail(MPG_ERROR, "%s cannot be used by rank %d, which also compiles its programs: %s",
                    mpg_device_id_text(id).text, mpg_ranks_own(), reason);
  return open_device(id, &mpg_remote_backend, NULL, result);
}

mpg_status mpg_device_get(mpg_device_id id, mpg_device **device) {
  if (id.type == MPG_CPU_PINNED || id.type == MPG_CPU_SHARED) id.type = MPG_CPU;
  if ((*device = mpg_device_find(id)) != NULL) return MPG_OK;
  if (id.index < 0)
    return mpg_fail(MPG_ERROR, "device index %d is negative; indices start at 0", id.index);
  if (id.rank) {
    if (mpg_device_rank(id) >= mpg_ranks_count())
      return mpg_fail(MPG_VALUE_ERROR, "%s: rank %d does not exist; this program has %d ranks",
                      mpg_device_id_text(id).text, mpg_device_rank(id), mpg_ranks_count());
    if (mpg_device_rank(id) != mpg_ranks_own()) return open_remote(id, device);
  }
  if (id.type == MPG_CPU || id.type == MPG_CPU_SIDE)
    return open_device(id, cpu_backend(), NULL, device);
  if (id.type == MPG_GPU) return open_gpu(id, device);
  return mpg_fail(MPG_ERROR, "unknown device type number %d", id.type);
}

mpg_status mpg_device_open_in_directory(const char *directory, mpg_device **device) {
  enum { FIRST_INDEX = 1000 }; /* programs rarely name CPU devices with so large indices */
  MPG_TRY(mpg_file_memory_check(directory));
  char *own = mpg_strdup(directory);
  if (!own) return mpg_out_of_host_memory(strlen(directory) + 1);
  mpg_device_id id = {.type = MPG_CPU, .index = FIRST_INDEX};
  while (mpg_device_find(id)) id.index++;
  mpg_status status = open_device(id, cpu_backend(), own, device);
  if (status != MPG_OK) mpg_free(own);
  return status;
}

mpg_status mpg_device_side(mpg_device *device, mpg_device **side) {
  *side = NULL;
  return device->id.type == MPG_CPU
             ? mpg_device_get((mpg_device_id){MPG_CPU_SIDE, device->id.index, device->id.rank},
                              side)
             : MPG_OK;
}

/* --- Modes, fork, exit ------------------------------------------------------------------------ */

mpg_status mpg_engine_set_mode(mpg_engine_mode mode, uint64_t seed) {
  for (int i = 0; i < mpg_device_count(); i++)
    MPG_TRY(mpg_point_wait(
        (mpg_point){.device = mpg_device_at(i), .tick = mpg_device_at(i)->submitted}, false));
  const mpg_backend *backend = mode == MPG_ENGINE_SHUFFLE ? &mpg_shuffle_backend : &mpg_cpu_backend;
  if (mode == MPG_ENGINE_SHUFFLE) mpg_shuffle_seed(seed);
  for (int i = 0; i < mpg_device_count() && mode == MPG_ENGINE_SHUFFLE; i++)
    if (is_cpu(mpg_device_at(i))) MPG_TRY(backend->open(mpg_device_at(i)));
  for (int i = 0; i < mpg_device_count(); i++)
    if (is_cpu(mpg_device_at(i))) mpg_device_at(i)->backend = backend;
  mpg_engine_store_mode(mode);
  return MPG_OK;
}

/* Prepares for a fork. Waits until all work has finished, because the child has no workers. Takes
 * the locks, so that the child gets a consistent state. */
static void before_fork(void) {
  /* The fork happens in running work, so this device cannot become idle. Waiting for it would
   * deadlock. */
  if (mpg_worker_device()) return;
  pthread_mutex_lock(&runtime.opening);
  for (int i = 0; i < mpg_device_count(); i++)
    mpg_tick_wait(mpg_device_at(i), mpg_device_at(i)->submitted, false);
  for (int i = 0; i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    mpg_failures_fork_prepare(device);
    device->backend->fork_prepare(device);
  }
  mpg_engine_fork_prepare();
  runtime.fork_prepared = true;
}

/* Disables the devices whose memory this forked child did not inherit. */
static void lose_files(void) {
  for (int i = 0; i < mpg_device_count(); i++)
    if (mpg_device_directory(mpg_device_at(i))) mpg_device_at(i)->backend = &mpg_lost_backend;
}

static void after_fork(bool child) {
  if (child) mpg_idle_spin_forget();
  if (!runtime.fork_prepared) {
    if (child) {
      mpg_engine_refuse_work();
      lose_files();
    }
    return;
  }
  runtime.fork_prepared = false;
  mpg_engine_fork_done(child);
  for (int i = mpg_device_count() - 1; i >= 0; i--) {
    mpg_device *device = mpg_device_at(i);
    device->backend->fork_done(device, child);
    mpg_failures_fork_done(device, child);
  }
  if (child) lose_files();
  pthread_mutex_unlock(&runtime.opening);
}
static void after_fork_in_parent(void) { after_fork(false); }
static void after_fork_in_child(void) { after_fork(true); }

/* has no effect if the host has already called mpg_device_shutdown */
static void shut_down_at_exit(void) {
  mpg_engine_note_exit();
  mpg_device_shutdown();
}

mpg_status mpg_device_init(void) {
  if (runtime.initialized) return MPG_OK;
  mpg_start_settings start;
  MPG_TRY(mpg_settings_read(&start));
  runtime.fixed_threads = start.fixed_threads;
  MPG_TRY(mpg_engine_set_mode(start.mode, start.seed));
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0 ||
      atexit(shut_down_at_exit) != 0)
    return mpg_out_of_host_memory(0);
  runtime.initialized = true;
  return MPG_OK;
}

void mpg_device_shutdown(void) {
  if (mpg_engine_refuses_work()) return;
  mpg_engine_refuse_work();
  mpg_rendezvous_close();
  for (int i = 0; i < mpg_device_count(); i++) mpg_device_at(i)->backend->stop(mpg_device_at(i));
  for (int i = 0; i < mpg_device_count(); i++) mpg_device_at(i)->backend->close(mpg_device_at(i));
}
