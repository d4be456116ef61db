/* Copy-on-write of storages whose contents a gradient still needs.
 *
 * A saver is a gradient function that needs a storage's contents. It records the storage's version.
 * If the contents have savers, mpg_storage_before_write copies them before work that overwrites
 * them is queued. When the write is recorded (mpg_storage_add_write), the savers of the old version
 * get the copy. So gradients use the values of the forward pass. Contents are lost only if there is
 * no memory for a copy, or if other libraries write to an exposed storage unnoticed.
 *
 * Ownership: a saver holds a reference to the storage. The storage owns the copies; each copy is
 * freed with its last saver. Threads: callers hold the host lock.
 */
#ifndef MPG_TENSOR_CONTENTS_H
#define MPG_TENSOR_CONTENTS_H

#include "tensor/tensor.h"

typedef struct mpg_saved {
  mpg_storage *storage; /* owned; NULL if nothing is saved */
  size_t offset;
  uint32_t version;
} mpg_saved;

/* A group of savers of watched storages that is counted lazily, so that a compiled call need not
 * visit each of its parameters. The group is counted only if a watched storage is about to be
 * written while the group is in the list of late savers. */
typedef struct mpg_late_savers {
  struct mpg_late_savers *next, **link; /* link is NULL if not in the list */
  /* Adds the savers to their storages; called at most once. */
  void (*count)(struct mpg_late_savers *savers);
} mpg_late_savers;
void mpg_late_savers_add(mpg_late_savers *savers);    /* no-op if already in the list */
void mpg_late_savers_remove(mpg_late_savers *savers); /* no-op if not in the list */
void mpg_late_savers_count(void);                     /* calls each `count` and empties the list */

/* Returns the current number of savers of tracked storages. The storages of parameters' gradients
 * are tracked. */
uint64_t mpg_contents_tracked_savers(void);
void mpg_contents_count_tracked(int64_t change);
/* Marks a storage as tracked: from then on, its savers and its reads by other devices are
 * counted. */
void mpg_contents_track(mpg_storage *storage);

static inline void mpg_contents_add_saver(mpg_storage *storage) {
  storage->savers++;
  if (__builtin_expect(storage->tracked, 0)) mpg_contents_count_tracked(1);
}
void mpg_contents_drop_kept(mpg_storage *storage, uint32_t version);
/* Removes one saver of version `version`. */
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

/* Returns a borrowed storage that holds the contents of version `version`: the storage itself or a
 * copy. If the contents are lost, returns NULL and sets *no_memory to true if the reason is that
 * there was no memory for a copy. */
mpg_storage *mpg_contents_find(mpg_storage *storage, uint32_t version, bool *no_memory);
const char *mpg_contents_lost_text(bool no_memory); /* describes why contents are lost */
static inline mpg_storage *mpg_contents_at(mpg_storage *storage, uint32_t version) {
  bool no_memory;
  return __builtin_expect(storage->version == version, 1)
             ? storage
             : mpg_contents_find(storage, version, &no_memory);
}

/* True if the current contents already have a copy. */
bool mpg_contents_kept(mpg_storage *storage);
/* Records `copy` as the copy of the current contents, which must not have a copy yet. Takes
 * ownership of `copy`. If `copy` is NULL, records that memory was exhausted. */
mpg_status mpg_contents_keep(mpg_storage *storage, mpg_storage *copy);

#endif
