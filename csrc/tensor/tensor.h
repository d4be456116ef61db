/* Storages and tensors.
 *
 * A storage is memory on one device: reference-counted, with a version (number of writes) and the
 * uses that queued work makes of it. A tensor is a view of a storage: byte offset, shape, dtype;
 * always contiguous. Tensors are values: copying the struct borrows; mpg_tensor_retain / _release
 * count. Ownership: a storage lives while references are held; its memory goes back to the pool at
 * once then, queued work being protected by the uses that travel with the block. Threads: host
 * lock; workers see only raw addresses.
 */
#ifndef MPG_TENSOR_TENSOR_H
#define MPG_TENSOR_TENSOR_H

#include "device/gpu/pinned.h"
#include "device/pool.h"
#include "tensor/shape.h"

typedef struct mpg_kept_contents mpg_kept_contents; /* contents.h */

typedef struct mpg_storage {
  int32_t references;
  uint32_t version; /* 0: never written, so whatever work the block's uses tell of was not for this
                       storage */
  bool watched;     /* a cache depends on its contents: writes are counted */
  bool tracked;     /* reads by other devices are counted */
  bool exposed;     /* others hold its address and may write without a word: memory from outside, or
                       given out (DLPack) */
  uint32_t savers;  /* who needs the present contents for a gradient: contents.h */
  mpg_device *device;
  mpg_kept_contents *kept;      /* owned: copies of contents that were overwritten; mostly NULL */
  size_t size;                  /* bytes asked for */
  uint64_t born;                /* number of storages made up to this one */
  uint64_t name;                /* name in all processes (mpg_ranks_name_array); 0 if none */
  void (*release)(void *owner); /* memory from outside: called instead of freeing, when no queued
                                   work uses it */
  void *owner;
  mpg_block block;
} mpg_storage;

typedef struct mpg_tensor {
  mpg_storage *storage; /* NULL: no tensor */
  size_t offset;        /* bytes */
  mpg_desc desc;
} mpg_tensor;

mpg_status mpg_storage_create(mpg_device *device, size_t size, bool host_access,
                              mpg_storage **storage); /* new */
/* Wraps memory that `owner` keeps alive; release(owner) is called when done (host lock held). On
 * failure nothing is called. */
mpg_status mpg_storage_wrap(mpg_device *device, void *memory, size_t size, void (*release)(void *),
                            void *owner, mpg_storage **storage);
uint64_t mpg_storage_births(void); /* number of storages made so far */
static inline void mpg_storage_retain(mpg_storage *storage) { storage->references++; }
void mpg_storage_destroy(mpg_storage *storage);
/* Releases the owners of outside memory that queued work still used when its storage went away;
 * those whose work is done. Creating, wrapping and destroying storages does it too. */
void mpg_storage_collect(void);
static inline void mpg_storage_release(mpg_storage *storage) {
  if (--storage->references == 0) mpg_storage_destroy(storage);
}

/* The same as a whole tensor; the desc is checked, its bytes are those of the memory. */
mpg_status mpg_tensor_wrap(mpg_device *device, void *memory, const mpg_desc *desc,
                           void (*release)(void *), void *owner, mpg_tensor *tensor);
/* A new tensor in a new storage; the desc is checked (MPG_VALUE_ERROR for shapes that do not fit).
 * Contents undefined. */
mpg_status mpg_tensor_create(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
/* The same in pinned memory (device/gpu/pinned.h), for a device whose memory is the host's. */
mpg_status mpg_tensor_create_pinned(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor);
static inline void mpg_tensor_retain(const mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_retain(tensor->storage);
}
static inline void mpg_tensor_release(mpg_tensor *tensor) {
  if (tensor->storage) mpg_storage_release(tensor->storage);
  tensor->storage = NULL;
}
static inline void *mpg_tensor_data(const mpg_tensor *tensor) { /* an address on its device */
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
/* Whether the two have bytes in common. */
static inline bool mpg_tensor_overlaps(const mpg_tensor *a, const mpg_tensor *b) {
  return a->storage == b->storage && a->offset < b->offset + mpg_tensor_bytes(b) &&
         b->offset < a->offset + mpg_tensor_bytes(a);
}
/* The same memory under another shape of the same size: retains. */
mpg_status mpg_tensor_reshape(const mpg_tensor *tensor, const mpg_shape *shape, mpg_tensor *result);
/* Rows [begin, end) of the first axis: shares memory, retains. */
mpg_status mpg_tensor_slice(const mpg_tensor *tensor, int64_t begin, int64_t end,
                            mpg_tensor *result);

/* In what follows the host lock is given up while blocking, so the caller holds a reference to the
 * storage. Waits for the work that writes the tensor now, and reports its failure. Others may queue
 * more meanwhile. */
mpg_status mpg_tensor_wait(const mpg_tensor *tensor);
/* Waits until the tensor may be read (written) by the host at its address: looks again until
 * nothing is left, and the lock has not been given up since. Where others go on queueing more, it
 * is kept in the end. Reading reports the failure of the work that wrote it. */
mpg_status mpg_tensor_wait_read(const mpg_tensor *tensor);
mpg_status mpg_tensor_wait_write(const mpg_tensor *tensor);
/* Blocking copies to and from host memory of exactly mpg_tensor_bytes, whole towards work that
 * others queue meanwhile: they wait once, and where others keep the array busy the device copies,
 * in the order of its work. copy_from counts as a write (version). */
mpg_status mpg_tensor_copy_to_host(const mpg_tensor *tensor, void *host);
mpg_status mpg_tensor_copy_from_host(mpg_tensor *tensor, const void *host);
/* A copy (new) on the same device of what the tensor holds at this place in the order of the
 * device's work. */
mpg_status mpg_tensor_snapshot(const mpg_tensor *tensor, mpg_tensor *copy);

/* To be called before work that writes a storage is queued, or runs: contents that somebody has
 * saved for a gradient are copied (contents.h). */
void mpg_storage_copy_contents(mpg_storage *storage);
bool mpg_late_savers_exist(void);
static inline void mpg_storage_before_write(mpg_storage *storage) {
  if (__builtin_expect(storage->savers || (storage->watched && mpg_late_savers_exist()), 0))
    mpg_storage_copy_contents(storage);
}

/* The points that work on `device` must wait for before it reads or writes the storage, or both:
 * added to the list, each once, but for those that are reached and have not failed. Own-device
 * order needs no waiting, but for a reader the last write is listed for failures; who writes only a
 * part of the storage counts as a reader, as what the rest holds is kept. Work of another device
 * that writes pushes into the storage: it waits for all that still touches it there. Makes room for
 * noting it. This function and those that note uses belong into mpg_device_queue's. */
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
  /* what was written together follows each other: mostly it is one of the last two */
  for (int i = 1; i <= 2; i++)
    if (mpg_points_known(list, list->count - i, device, tick, data)) return MPG_OK;
  return mpg_points_add_new(list, device, tick, data);
}
mpg_status mpg_storage_foreign_points(mpg_storage *storage, const mpg_device *device, bool writes,
                                      mpg_point_list *list);
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
/* The failure of the work that wrote the storage, when that is known already; MPG_OK for storages
 * never written. */
static inline mpg_status mpg_storage_failure(const mpg_storage *storage) {
  if (!mpg_device_has_failed(storage->device) || !storage->version) return MPG_OK;
  return mpg_device_failure(storage->device, storage->block.uses.write);
}
/* Tells the storage that work at `tick` of `device` reads (writes) it, after its points were
 * collected. Only its own device writes; a push by another one is noted like a read. Tick 0:
 * written at once, in this thread. */
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
/* Writes to watched storages so far. While it stays the same, so do their contents; those of
 * exposed ones may change at any time. */
uint64_t mpg_storage_watched_writes(void);
/* Reads of tracked storages by other devices that were queued so far. */
uint64_t mpg_storage_foreign_reads(void);
void mpg_storage_expose(mpg_storage *storage);
/* True when work that runs now, in this thread, on the (idle) device of the storage may write it.
 */
static inline bool mpg_storage_writable_now(const mpg_storage *storage) {
  return storage->block.uses.num_foreign == 0 ||
         mpg_uses_finished(&storage->block.uses, storage->device);
}

#endif
