/* Device memory: copies, scratch and totals. */
#include "base/host.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/pool.h"

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
  /* Ignores the status, because shrinking cannot fail. */
  mpg_pool_resize_scratch(device->pool, scratch_total(device));
}

static void free_scratch(mpg_device *device) {
  for (int i = 0; i < MPG_SCRATCH_SLOTS; i++) free_slot(device, (mpg_scratch_slot)i);
}

/* Allocates from the system. If memory is short, releases unused cached blocks and tries again. If
 * none can be released, waits once for the device's earlier work, which may still use cached
 * blocks. */
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

/* --- Totals ----------------------------------------------------------------------------------- */

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

mpg_status mpg_device_trim(mpg_device *device) {
  MPG_TRY(mpg_pool_trim(device->pool, true));
  if (mpg_device_idle(device)) free_scratch(device);
  if (!device->backend->trim) return MPG_OK;
  void *token = mpg_host_release_lock();
  device->backend->trim(device);
  mpg_host_acquire_lock(token);
  return MPG_OK;
}
