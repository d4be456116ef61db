/* Copy-on-write of contents that a gradient still reads.
 *
 * A saver of a storage's contents records the version. Before work that writes a storage is queued,
 * mpg_storage_before_write copies the contents if they have savers. The write itself
 * (mpg_storage_add_write) hands the copy over to the savers. Gradients therefore use the values of
 * the forward pass. Contents are lost only if there is no memory for a copy, or if other code
 * writes an exposed storage without notice.
 *
 * Ownership: a saver holds a reference to the storage. The storage owns the copies; each copy is
 * freed with its last saver. Threads: host lock.
 */
#ifndef MPG_TENSOR_CONTENTS_H
#define MPG_TENSOR_CONTENTS_H

#include "tensor/tensor.h"

typedef struct mpg_saved {
  mpg_storage *storage; /* owned; NULL if nothing is saved */
  size_t offset;
  uint32_t version;
} mpg_saved;

/* Savers of many watched storages that are counted lazily: only when a watched storage is about to
 * be written while they are in the list. A compiled call thus need not visit its parameters. */
typedef struct mpg_late_savers {
  struct mpg_late_savers *next, **link;          /* link is NULL outside of the list */
  void (*count)(struct mpg_late_savers *savers); /* adds the savers to their storages, once */
} mpg_late_savers;
void mpg_late_savers_add(mpg_late_savers *savers);    /* no-op if already in the list */
void mpg_late_savers_remove(mpg_late_savers *savers); /* no-op if not in the list */
void mpg_late_savers_count(void);                     /* calls each `count` and empties the list */

/* Returns the current number of savers of tracked storages, the destinations of gradients. */
uint64_t mpg_contents_tracked_savers(void);
void mpg_contents_count_tracked(int64_t change);
/* Starts counting the savers of a storage and its reads by other devices. */
void mpg_contents_track(mpg_storage *storage);

static inline void mpg_contents_add_saver(mpg_storage *storage) {
  storage->savers++;
  if (__builtin_expect(storage->tracked, 0)) mpg_contents_count_tracked(1);
}
void mpg_contents_drop_kept(mpg_storage *storage, uint32_t version);
/* Releases one saver of the version. */
static inline void mpg_contents_remove_saver(mpg_storage *storage, uint32_t version) {
  if (__builtin_expect(storage->version == version, 1)) {
    storage->savers--;
    if (__builtin_expect(storage->tracked, 0)) mpg_contents_count_tracked(-1);
  } else if (storage->kept) {
    mpg_contents_drop_kept(storage, version);
  }
}

static inline mpg_saved mpg_contents_save(mpg_storage *storage, size_t offset) {
  mpg_storage_retain(storage);
  mpg_contents_add_saver(storage);
  return (mpg_saved){storage, offset, storage->version};
}
static inline void mpg_contents_release(mpg_saved *saved) { /* no-op if nothing is saved */
  mpg_storage *storage = saved->storage;
  saved->storage = NULL;
  if (!storage) return;
  mpg_contents_remove_saver(storage, saved->version);
  mpg_storage_release(storage);
}

/* Returns a storage with the contents of that version: the storage itself, a copy, or NULL if they
 * are lost. *no_memory is the reason of the loss. Borrowed. */
mpg_storage *mpg_contents_find(mpg_storage *storage, uint32_t version, bool *no_memory);
const char *mpg_contents_lost_text(bool no_memory); /* describes the reason of the loss */
static inline mpg_storage *mpg_contents_at(mpg_storage *storage, uint32_t version) {
  bool no_memory;
  return __builtin_expect(storage->version == version, 1)
             ? storage
             : mpg_contents_find(storage, version, &no_memory);
}

/* True if the present contents have a copy already. */
bool mpg_contents_kept(mpg_storage *storage);
/* Records a copy of the present contents, which must not have a copy. Takes ownership of `copy`,
 * which is NULL if memory was exhausted. */
mpg_status mpg_contents_keep(mpg_storage *storage, mpg_storage *copy);

#endif
