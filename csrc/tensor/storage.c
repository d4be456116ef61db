/* Storages: blocks of memory on a device, with a version and a record of uses. */
#include <stddef.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/cpu/file_memory.h"
#include "tensor/tensor.h"

enum { MAX_FREE = 4096 };

/* Runtime state, guarded by the host lock. free_storages is a free list of structs, linked through
 * `owner`. leaving lists destroyed storages whose imported memory is still used by queued work. */
static mpg_storage *free_storages, *leaving;
static int num_free;
static uint64_t watched_writes, foreign_reads;
static uint64_t births; /* number of storages created so far; runtime state */

uint64_t mpg_storage_births(void) { return births; }
uint64_t mpg_storage_new_birth(void) { return ++births; }

static mpg_storage *new_storage(void) {
  mpg_storage *storage = free_storages;
  if (__builtin_expect(storage != NULL, 1)) {
    free_storages = storage->owner;
    num_free--;
    return storage;
  }
  storage = mpg_malloc(sizeof *storage);
  if (!storage) mpg_out_of_host_memory(sizeof *storage);
  return storage;
}

static void recycle(mpg_storage *storage) {
  if (num_free >= MAX_FREE) {
    mpg_free(storage);
    return;
  }
  mpg_poison(storage, sizeof *storage);
  storage->owner = free_storages;
  free_storages = storage;
  num_free++;
}

/* Returns imported memory to its owner. This may run the host's code, such as a finalizer. */
static void release_outside(mpg_storage *storage) {
  mpg_host_yield();
  storage->release(storage->owner);
  mpg_free(storage->block.uses.foreign);
  recycle(storage);
}

/* The list `leaving` is linked through block.memory, which is free for this because the address of
 * the memory is no longer needed. */
void mpg_storage_collect(void) {
  mpg_storage *left = leaving;
  leaving = NULL; /* so that this function can be called again while `release` runs */
  while (left) {
    mpg_storage *next = left->block.memory;
    if (mpg_uses_finished(&left->block.uses, left->device)) {
      release_outside(left);
    } else {
      left->block.memory = leaving;
      leaving = left;
    }
    left = next;
  }
}

mpg_status mpg_storage_create(mpg_device *device, size_t size, bool host_access,
                              mpg_storage **result) {
  if (leaving) mpg_storage_collect();
  mpg_storage *storage = new_storage();
  if (!storage) return MPG_HOST_OUT_OF_MEMORY;
  /* Sets storage->block. The other fields are set below. */
  mpg_status status = mpg_pool_alloc(device->pool, size, host_access, &storage->block);
  if (status != MPG_OK) {
    recycle(storage);
    return status;
  }
  memset(storage, 0, offsetof(mpg_storage, block));
  storage->references = 1;
  storage->device = device;
  storage->size = size;
  storage->born = ++births;
  *result = storage;
  return MPG_OK;
}

mpg_status mpg_storage_wrap(mpg_device *device, void *memory, size_t size, void (*release)(void *),
                            void *owner, mpg_storage **result) {
  if (leaving) mpg_storage_collect();
  mpg_storage *storage = new_storage();
  if (!storage) return MPG_HOST_OUT_OF_MEMORY;
  *storage = (mpg_storage){.references = 1,
                           .exposed = true,
                           .device = device,
                           .block = {.memory = size ? memory : MPG_NO_BYTES, .size = size},
                           .size = size,
                           .born = ++births,
                           .release = release,
                           .owner = owner};
  *result = storage;
  return MPG_OK;
}

void mpg_storage_destroy(mpg_storage *storage) {
  if (__builtin_expect(storage->kept != NULL, 0)) mpg_contents_hand_over(storage);
  if (leaving) mpg_storage_collect();
  if (!storage->release) {
    mpg_pool_free(storage->device->pool, &storage->block);
    recycle(storage);
  } else if (mpg_uses_finished(&storage->block.uses, storage->device)) {
    release_outside(storage);
  } else {
    storage->block.memory = leaving;
    leaving = storage;
  }
}

void mpg_storage_note_watched(void) { watched_writes++; }
uint64_t mpg_storage_watched_writes(void) { return watched_writes; }
uint64_t mpg_storage_foreign_reads(void) { return foreign_reads; }

void mpg_storage_expose(mpg_storage *storage) {
  storage->exposed = true;
  if (storage->watched) watched_writes++;
}

mpg_status mpg_points_add_new(mpg_point_list *list, mpg_device *device, mpg_tick tick, bool data) {
  enum { MOST_TRIES = 32 };
  for (int i = 3; i <= MOST_TRIES && list->begin <= list->count - i; i++)
    if (mpg_points_known(list, list->count - i, device, tick, data)) return MPG_OK;
  if (mpg_tick_reached(device, tick) && !(data && mpg_device_has_failed(device))) return MPG_OK;
  MPG_TRY(mpg_grow((void **)&list->points, &list->capacity, (size_t)list->count + 1,
                   sizeof *list->points));
  list->points[list->count++] = (mpg_point){device, tick, data};
  return MPG_OK;
}

mpg_status mpg_storage_foreign_points(mpg_storage *storage, const mpg_device *device, bool writes,
                                      mpg_point_list *list) {
  mpg_uses *uses = &storage->block.uses;
  if (device != storage->device) {
    MPG_TRY(mpg_device_check_not_lost(storage->device));
    MPG_TRY(mpg_uses_reserve(uses));
    if (writes)
      MPG_TRY(mpg_points_add(list, storage->device,
                             uses->write > uses->read ? uses->write : uses->read, false));
  }
  for (int i = 0; writes && i < uses->num_foreign; i++)
    if (uses->foreign[i].device != device)
      MPG_TRY(mpg_points_add(list, uses->foreign[i].device, uses->foreign[i].tick, false));
  return MPG_OK;
}

void mpg_storage_add_foreign_read(mpg_storage *storage, mpg_device *device, mpg_tick tick) {
  foreign_reads += storage->tracked;
  mpg_uses_add_read(&storage->block.uses, storage->device, device, tick);
}
