/* Storages and tensors.
 *
 * A storage is a block of memory on a device, with a reference count, a version (number of writes)
 * and a record of its uses by queued work. A tensor is a contiguous view of a storage, with a byte
 * offset, shape and dtype. Tensors are values: copying the struct borrows the storage, and
 * mpg_tensor_retain and mpg_tensor_release count references.
 *
 * Ownership: a storage is destroyed with its last reference. Its memory then returns to the pool
 * immediately, even if queued work still uses it. The record of uses stays with the memory, and its
 * next owner waits for that work. Threads: callers hold the host lock; workers see only raw
 * addresses.
 */
#ifndef MPG_TENSOR_TENSOR_H
#define MPG_TENSOR_TENSOR_H

#include "device/gpu/pinned.h"
#include "device/pool.h"
#include "tensor/shape.h"

typedef struct mpg_kept_contents mpg_kept_contents; /* contents.h */

typedef struct mpg_storage {
  int32_t references;
  /* Number of writes. While 0, the uses recorded in `block` belong to earlier storages that had the
   * same memory. */
  uint32_t version;
  /* True if a cache depends on the contents. mpg_storage_watched_writes then counts the writes. */
  bool watched;
  /* True if mpg_storage_foreign_reads counts reads of this storage by other devices. */
  bool tracked;
  /* True if other libraries have the address and may write to the memory unnoticed, as with
   * imported and exported memory (DLPack). */
  bool exposed;
  bool zeros;      /* True if the first write is of zeros (mpg_storage_is_zero) */
  uint32_t savers; /* number of savers (gradients) that need the current contents (contents.h) */
  mpg_device *device;
  mpg_kept_contents *kept; /* list of copies of overwritten contents; owned; usually NULL */
  size_t size;             /* requested bytes */
  uint64_t born;           /* serial number: the first storage has 1 */
  /* Number that identifies the array in all processes (mpg_ranks_name_array); 0 if none. */
  uint64_t name;
  /* Imported memory only: returns the memory to its owner instead of the pool. Called once no
   * queued work uses the memory. */
  void (*release)(void *owner);
  void *owner;
  mpg_block block;
} mpg_storage;

typedef struct mpg_tensor {
  mpg_storage *storage; /* NULL if the tensor is empty */
  size_t offset;        /* bytes */
  mpg_desc desc;
} mpg_tensor;

/* Creates a storage with undefined contents. `host_access` is as in mpg_pool_alloc. */
mpg_status mpg_storage_create(mpg_device *device, size_t size, bool host_access,
                              mpg_storage **storage);
/* Wraps imported memory in a storage. `owner` keeps the memory alive until release(owner), which is
 * called under the host lock once the memory is no longer used. If this function fails, `release`
 * is not called. */
mpg_status mpg_storage_wrap(mpg_device *device, void *memory, size_t size, void (*release)(void *),
                            void *owner, mpg_storage **storage);
uint64_t mpg_storage_births(void);    /* number of storages created so far */
uint64_t mpg_storage_new_birth(void); /* reserves a serial number for a later storage */
static inline void mpg_storage_retain(mpg_storage *storage) { storage->references++; }
void mpg_storage_destroy(mpg_storage *storage);
/* Releases imported memory whose storage has been destroyed, if the queued work that used the
 * memory has finished. Functions that create, wrap or destroy a storage call this as well. */
void mpg_storage_collect(void);
static inline void mpg_storage_release(mpg_storage *storage) {
  if (--storage->references == 0) mpg_storage_destroy(storage);
}

/* Wraps imported memory (see mpg_storage_wrap) in a tensor. Checks that `desc` is valid; the caller
 * ensures that the memory has as many bytes as `desc` requires. */
mpg_status mpg_tensor_wrap(mpg_device *device, void *memory, const mpg_desc *desc,
                           void (*release)(void *), void *owner, mpg_tensor *tensor);
/* Creates a tensor in a new storage with undefined contents. Returns MPG_VALUE_ERROR if the shape
 * is invalid or too large. */
mpg_status mpg_tensor_create(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
/* Like mpg_tensor_create, but in pinned memory (device/gpu/pinned.h). The host must be able to
 * access the device's memory. */
mpg_status mpg_tensor_create_pinned(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
static inline void mpg_tensor_retain(const mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_retain(tensor->storage);
}
static inline void mpg_tensor_release(mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_release(tensor->storage);
  tensor->storage = NULL;
}
/* Returns the address of the first element in the memory of the tensor's device. */
static inline void *mpg_tensor_data(const mpg_tensor *tensor) {
  return (char *)tensor->storage->block.memory + tensor->offset;
}
static inline bool mpg_tensor_pinned(const mpg_tensor *tensor) {
  return tensor->storage && tensor->storage->release == mpg_pinned_release;
}
static inline mpg_device *mpg_tensor_device(const mpg_tensor *tensor) {
  return tensor->storage->device;
}
static inline size_t mpg_tensor_bytes(const mpg_tensor *tensor) {
  return (size_t)mpg_shape_size(&tensor->desc.shape) * mpg_dtype_size(tensor->desc.dtype);
}
/* True if the tensors share bytes. */
static inline bool mpg_tensor_overlaps(const mpg_tensor *a, const mpg_tensor *b) {
  return a->storage == b->storage && a->offset < b->offset + mpg_tensor_bytes(b) &&
         b->offset < a->offset + mpg_tensor_bytes(a);
}
/* Creates a view with another shape of the same size; retains the storage. */
mpg_status mpg_tensor_reshape(const mpg_tensor *tensor, const mpg_shape *shape, mpg_tensor *result);
/* Creates a view of rows [begin, end) of the first axis; retains the storage. */
mpg_status mpg_tensor_slice(const mpg_tensor *tensor, int64_t begin, int64_t end,
                            mpg_tensor *result);

/* The waiting and copying functions below release the host lock while they block, so the caller
 * must hold a reference to the storage. */
/* Waits for the last queued write of the tensor and reports its failure. On return, other threads
 * may have queued another write. */
mpg_status mpg_tensor_wait(const mpg_tensor *tensor);
/* Wait until the host may read (or write) the tensor's memory directly. On return, no conflicting
 * work is queued, and the host lock has been held since that was checked. If other threads keep
 * queueing work, the lock is eventually held while waiting. mpg_tensor_wait_read reports the
 * failure of the work that wrote the tensor. */
mpg_status mpg_tensor_wait_read(const mpg_tensor *tensor);
mpg_status mpg_tensor_wait_write(const mpg_tensor *tensor);
/* Copy all of the tensor's bytes to or from host memory. Block until the copy has read or written
 * `host`. The copy is atomic with respect to work that other threads queue. These functions wait
 * once for the array. If newer work uses the array by then, they queue the copy. Copying from the
 * host increments the version. */
mpg_status mpg_tensor_copy_to_host(const mpg_tensor *tensor, void *host);
mpg_status mpg_tensor_copy_from_host(mpg_tensor *tensor, const void *host);
/* Creates a copy on the same device. The copy is queued, so it sees the results of all work queued
 * earlier. */
mpg_status mpg_tensor_snapshot(const mpg_tensor *tensor, mpg_tensor *copy);

/* Copies the contents of a storage if they are saved for a gradient (contents.h). Must be called
 * before work that writes the storage is queued or runs. */
void mpg_storage_copy_contents(mpg_storage *storage);
bool mpg_late_savers_exist(void);
static inline void mpg_storage_before_write(mpg_storage *storage) {
  if (__builtin_expect(storage->savers || (storage->watched && mpg_late_savers_exist()), 0))
    mpg_storage_copy_contents(storage);
}

/* True if entry i of the list is the point (device, tick). In that case, sets the entry's `data`
 * flag if `data` is true. */
static inline bool mpg_points_known(const mpg_point_list *list, int i, const mpg_device *device,
                                    mpg_tick tick, bool data) {
  if (i < list->begin || list->points[i].tick != tick || list->points[i].device != device)
    return false;
  list->points[i].data |= data;
  return true;
}
mpg_status mpg_points_add_new(mpg_point_list *list, mpg_device *device, mpg_tick tick, bool data);
static inline mpg_status mpg_points_add(mpg_point_list *list, mpg_device *device, mpg_tick tick,
                                        bool data) {
  /* Arrays that were written together are usually listed together, so the point is usually one of
   * the last two. */
  for (int i = 1; i <= 2; i++)
    if (mpg_points_known(list, list->count - i, device, tick, data)) return MPG_OK;
  return mpg_points_add_new(list, device, tick, data);
}
mpg_status mpg_storage_foreign_points(mpg_storage *storage, const mpg_device *device, bool writes,
                                      mpg_point_list *list);
/* Adds the points that work on `device` must wait for before it reads or writes the storage, and
 * reserves memory for recording the use. Adds each point once. Skips points that were already
 * reached, unless their work may have failed.
 *
 * Work on the storage's own device runs in order, so it need not wait, but for a reader the last
 * write is added, so that its failure propagates. For work that writes only part of the storage,
 * `reads` must be true, because the rest of the contents is kept. Work of another device that
 * writes into the storage (a push) waits for all work that still uses the storage.
 *
 * This function and the functions that record uses must be called within mpg_device_queue. */
static inline mpg_status mpg_storage_points(mpg_storage *storage, const mpg_device *device,
                                            bool reads, bool writes, mpg_point_list *list) {
  const mpg_uses *uses = &storage->block.uses;
  if (uses->num_foreign || device != storage->device)
    MPG_TRY(mpg_storage_foreign_points(storage, device, writes, list));
  return reads && uses->write
             ? mpg_points_add(list, storage->device, uses->write, storage->version != 0)
             : MPG_OK;
}
static inline bool mpg_tensor_is_part(const mpg_tensor *tensor) {
  return mpg_tensor_bytes(tensor) != tensor->storage->size;
}
/* Returns the failure of the storage's last write if the write has already failed. Otherwise, or if
 * the storage was never written, returns MPG_OK. */
static inline mpg_status mpg_storage_failure(const mpg_storage *storage) {
  if (!mpg_device_has_failed(storage->device) || !storage->version) return MPG_OK;
  return mpg_device_failure(storage->device, storage->block.uses.write);
}
/* Record that work at `tick` of `device` reads (or writes) the storage. Called after its points
 * were collected. Only the storage's own device can write: a push by another device is recorded as
 * a read by that device. Tick 0 means that the caller has already written the storage. */
void mpg_storage_add_foreign_read(mpg_storage *storage, mpg_device *device, mpg_tick tick);
static inline void mpg_storage_add_read(mpg_storage *storage, mpg_device *device, mpg_tick tick) {
  if (storage->device != device)
    mpg_storage_add_foreign_read(storage, device, tick);
  else if (tick > storage->block.uses.read)
    storage->block.uses.read = tick;
}
void mpg_storage_note_watched(void);
void mpg_contents_hand_over(mpg_storage *storage);
static inline void mpg_storage_add_write(mpg_storage *storage, mpg_tick tick) {
  if (__builtin_expect(storage->savers || storage->kept, 0)) mpg_contents_hand_over(storage);
  /* An unneeded store would delay the copy of the block, if the array is freed at once. */
  if (storage->block.uses.write != tick) storage->block.uses.write = tick;
  storage->version++;
  if (storage->watched) mpg_storage_note_watched();
}
/* Returns the number of writes to watched storages so far. While this number is unchanged, so are
 * the contents of all watched storages except exposed ones, which may change at any time. */
uint64_t mpg_storage_watched_writes(void);
/* Returns the number of queued reads of tracked storages by other devices. */
uint64_t mpg_storage_foreign_reads(void);
void mpg_storage_expose(mpg_storage *storage);
/* True if the storage is known to hold zeros, because nothing has written to it since. All ranks
 * get the same answer. */
static inline bool mpg_storage_is_zero(const mpg_storage *storage) {
  return storage->zeros && storage->version == 1 && !storage->exposed;
}
/* True if this thread may write the storage now, because no other device still reads it. The caller
 * must have checked that the storage's own device is idle. */
static inline bool mpg_storage_writable_now(const mpg_storage *storage) {
  return storage->block.uses.num_foreign == 0 ||
         mpg_uses_finished(&storage->block.uses, storage->device);
}

#endif
