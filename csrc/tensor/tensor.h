/* Storages and tensors.
 *
 * A storage is memory on one device. It has a reference count, a version (number of writes) and a
 * record of its uses by queued work. A tensor is a contiguous view of a storage, with a byte
 * offset, shape and dtype. Tensors are values: copying the struct borrows the storage, and
 * mpg_tensor_retain and mpg_tensor_release count references.
 *
 * Ownership: a storage lives while references are held. Its memory then returns to the pool
 * immediately, together with the record of uses, which protects queued work. Threads: host lock;
 * workers see only raw addresses.
 */
#ifndef MPG_TENSOR_TENSOR_H
#define MPG_TENSOR_TENSOR_H

#include "device/gpu/pinned.h"
#include "device/pool.h"
#include "tensor/shape.h"

typedef struct mpg_kept_contents mpg_kept_contents; /* contents.h */

typedef struct mpg_storage {
  int32_t references;
  /* 0 if never written; any work among the block's uses then belongs to an earlier storage. */
  uint32_t version;
  bool watched; /* writes are counted, because a cache depends on the contents */
  bool tracked; /* reads by other devices are counted */
  /* Other code holds the address and may write without notice, as for imported memory or exported
   * memory (DLPack). */
  bool exposed;
  uint32_t savers; /* number of gradients that need the present contents: contents.h */
  mpg_device *device;
  mpg_kept_contents *kept; /* copies of overwritten contents; owned, mostly NULL */
  size_t size;             /* requested bytes */
  uint64_t born;           /* serial number: storages created up to and including this one */
  uint64_t name;           /* name in all processes (mpg_ranks_name_array); 0 if none */
  /* Imported memory only: called instead of freeing, once no queued work uses the memory. */
  void (*release)(void *owner);
  void *owner;
  mpg_block block;
} mpg_storage;

typedef struct mpg_tensor {
  mpg_storage *storage; /* NULL if there is no tensor */
  size_t offset;        /* bytes */
  mpg_desc desc;
} mpg_tensor;

/* Creates a storage with undefined contents. */
mpg_status mpg_storage_create(mpg_device *device, size_t size, bool host_access,
                              mpg_storage **storage);
/* Wraps memory that `owner` keeps alive. release(owner) is called at the end with the host lock
 * held, but not if this function fails. */
mpg_status mpg_storage_wrap(mpg_device *device, void *memory, size_t size, void (*release)(void *),
                            void *owner, mpg_storage **storage);
uint64_t mpg_storage_births(void); /* number of storages created so far */
static inline void mpg_storage_retain(mpg_storage *storage) { storage->references++; }
void mpg_storage_destroy(mpg_storage *storage);
/* Releases the owners of imported memory whose storage was destroyed, once the queued work that
 * still used the memory is done. Creating, wrapping and destroying storages does this as well. */
void mpg_storage_collect(void);
static inline void mpg_storage_release(mpg_storage *storage) {
  if (--storage->references == 0) mpg_storage_destroy(storage);
}

/* Wraps memory as a whole tensor. The desc is checked; the memory must have its number of bytes. */
mpg_status mpg_tensor_wrap(mpg_device *device, void *memory, const mpg_desc *desc,
                           void (*release)(void *), void *owner, mpg_tensor *tensor);
/* Creates a tensor in a new storage with undefined contents. Returns MPG_VALUE_ERROR if the shape
 * is invalid or too large. */
mpg_status mpg_tensor_create(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
/* Like mpg_tensor_create, in pinned memory (device/gpu/pinned.h), for a device whose memory is the
 * host's. */
mpg_status mpg_tensor_create_pinned(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
static inline void mpg_tensor_retain(const mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_retain(tensor->storage);
}
static inline void mpg_tensor_release(mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_release(tensor->storage);
  tensor->storage = NULL;
}
/* Returns the address in the memory of the tensor's device. */
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

/* The functions below release the host lock while they block, so the caller must hold a reference
 * to the storage. */
/* Waits for the work that currently writes the tensor and reports its failure. Other threads may
 * queue more work meanwhile. */
mpg_status mpg_tensor_wait(const mpg_tensor *tensor);
/* Wait until the host may read (write) the tensor at its address. On return, no work that prevents
 * this is queued, and the lock has been held since that check. If other threads keep queueing work,
 * the lock is eventually held while waiting. Reading reports the failure of the work that wrote the
 * tensor. */
mpg_status mpg_tensor_wait_read(const mpg_tensor *tensor);
mpg_status mpg_tensor_wait_write(const mpg_tensor *tensor);
/* Copy to and from host memory of exactly mpg_tensor_bytes, and block. The copy is atomic with
 * respect to work that other threads queue meanwhile: the functions wait once, and if the array
 * stays busy, the device copies in the order of its work. Copying from the host counts as a write
 * (version). */
mpg_status mpg_tensor_copy_to_host(const mpg_tensor *tensor, void *host);
mpg_status mpg_tensor_copy_from_host(mpg_tensor *tensor, const void *host);
/* Creates a copy on the same device, with the contents at this point of the device's work order. */
mpg_status mpg_tensor_snapshot(const mpg_tensor *tensor, mpg_tensor *copy);

/* Must be called before work that writes a storage is queued or runs. Copies contents that are
 * saved for a gradient (contents.h). */
void mpg_storage_copy_contents(mpg_storage *storage);
bool mpg_late_savers_exist(void);
static inline void mpg_storage_before_write(mpg_storage *storage) {
  if (__builtin_expect(storage->savers || (storage->watched && mpg_late_savers_exist()), 0))
    mpg_storage_copy_contents(storage);
}

/* True if entry i of the list is this point; merges `data` into it. */
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
  /* Arrays written together are listed together, so the point is mostly one of the last two. */
  for (int i = 1; i <= 2; i++)
    if (mpg_points_known(list, list->count - i, device, tick, data)) return MPG_OK;
  return mpg_points_add_new(list, device, tick, data);
}
mpg_status mpg_storage_foreign_points(mpg_storage *storage, const mpg_device *device, bool writes,
                                      mpg_point_list *list);
/* Adds the points that work on `device` must wait for before it reads or writes the storage. Each
 * point is added once. Points that are reached and have not failed are skipped. Work on the
 * storage's own device does not wait, but a reader lists the last write so that its failure
 * propagates. Work that writes only a part of the storage is treated as a reader, because the rest
 * is kept. Work of another device that writes into the storage (a push) waits for all work that
 * still uses the storage. Also reserves memory for recording the use. This function and the ones
 * that record uses must be called within mpg_device_queue. */
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
/* Returns the failure of the work that wrote the storage if it is already known; MPG_OK for
 * storages that were never written. */
static inline mpg_status mpg_storage_failure(const mpg_storage *storage) {
  if (!mpg_device_has_failed(storage->device) || !storage->version) return MPG_OK;
  return mpg_device_failure(storage->device, storage->block.uses.write);
}
/* Record that work at `tick` of `device` reads (writes) the storage, after its points were
 * collected. Only the storage's own device writes; a push by another device is recorded like a
 * read. Tick 0 means that this thread has already written the storage. */
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
  storage->block.uses.write = tick;
  storage->version++;
  if (storage->watched) mpg_storage_note_watched();
}
/* Returns the number of writes to watched storages. While it stays the same, their contents do not
 * change, except for exposed storages, which may change at any time. */
uint64_t mpg_storage_watched_writes(void);
/* Returns the number of queued reads of tracked storages by other devices. */
uint64_t mpg_storage_foreign_reads(void);
void mpg_storage_expose(mpg_storage *storage);
/* True if work that runs now, on this thread and on the storage's idle device, may write it. */
static inline bool mpg_storage_writable_now(const mpg_storage *storage) {
  return storage->block.uses.num_foreign == 0 ||
         mpg_uses_finished(&storage->block.uses, storage->device);
}

#endif
