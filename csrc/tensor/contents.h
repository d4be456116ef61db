/* Contents that a gradient still reads: copy on write.
 *
 * Who saves a storage's contents notes its version. Before work that writes a storage is queued,
 * mpg_storage_before_write copies the contents if somebody has saved them; the write itself
 * (mpg_storage_add_write) leaves the copy to them. So gradients are those of the values that were
 * used. Lost are only contents for which there is no memory, and those of exposed storages that
 * others write without a word.
 *
 * Ownership: who saves has a reference to the storage; a storage owns the copies, each of which
 * goes with the last who saved it. Threads: host lock.
 */
#ifndef MPG_TENSOR_CONTENTS_H
#define MPG_TENSOR_CONTENTS_H

#include "tensor/tensor.h"

typedef struct mpg_saved {
  mpg_storage *storage; /* owned; NULL: not saved */
  size_t offset;
  uint32_t version;
} mpg_saved;

/* Savers of many watched storages, which are counted when somebody is about to write such a storage
 * while they are there, and not before: so a compiled call need not pass over its parameters. */
typedef struct mpg_late_savers {
  struct mpg_late_savers *next, **link;          /* link NULL: not in the list */
  void (*count)(struct mpg_late_savers *savers); /* adds them to their storages, once */
} mpg_late_savers;
void mpg_late_savers_add(mpg_late_savers *savers);    /* those in the list stay there */
void mpg_late_savers_remove(mpg_late_savers *savers); /* those that are in none are left alone */
void mpg_late_savers_count(void); /* calls `count` of all, and empties the list */

/* Savers of tracked storages (destinations of gradients) now. */
uint64_t mpg_contents_tracked_savers(void);
void mpg_contents_count_tracked(int64_t change);
void mpg_contents_track(mpg_storage *storage); /* from now on reads by other devices are counted */

static inline void mpg_contents_add_saver(mpg_storage *storage) {
  storage->savers++;
  if (__builtin_expect(storage->tracked, 0)) mpg_contents_count_tracked(1);
}
void mpg_contents_drop_kept(mpg_storage *storage, uint32_t version);
/* One saver of the version less. */
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
static inline void mpg_contents_release(mpg_saved *saved) { /* not saved: nothing is done */
  mpg_storage *storage = saved->storage;
  saved->storage = NULL;
  if (!storage) return;
  mpg_contents_remove_saver(storage, saved->version);
  mpg_storage_release(storage);
}

/* A storage with the contents of that version: itself, a copy, or NULL when they are lost (of which
 * *no_memory tells the reason). Borrowed. */
mpg_storage *mpg_contents_find(mpg_storage *storage, uint32_t version, bool *no_memory);
const char *mpg_contents_lost_text(bool no_memory); /* that reason */
static inline mpg_storage *mpg_contents_at(mpg_storage *storage, uint32_t version) {
  bool no_memory;
  return __builtin_expect(storage->version == version, 1)
             ? storage
             : mpg_contents_find(storage, version, &no_memory);
}

/* Notes a copy of the present contents (takes over; NULL: there was no memory), of which there is
 * none yet. */
bool mpg_contents_kept(mpg_storage *storage);
mpg_status mpg_contents_keep(mpg_storage *storage, mpg_storage *copy);

#endif
