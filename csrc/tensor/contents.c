/* Tracks the savers of storages, and keeps copies of overwritten contents for them. */
#include "tensor/contents.h"

#include "base/memory.h"

struct mpg_kept_contents {
  mpg_kept_contents *next; /* next in the storage's list of copies */
  mpg_storage *copy;       /* owned; NULL if memory for a copy was exhausted */
  uint32_t version;
  /* Number of savers of this version. Stays 0 while the version is current, because storage->savers
   * counts the savers of the current version. */
  uint32_t savers;
};

/* Runtime state, guarded by the host lock. */
static mpg_late_savers *late_savers;
static uint64_t tracked_savers;

bool mpg_late_savers_exist(void) { return late_savers != NULL; }

void mpg_late_savers_add(mpg_late_savers *savers) {
  if (savers->link) return;
  savers->next = late_savers;
  savers->link = &late_savers;
  if (late_savers) late_savers->link = &savers->next;
  late_savers = savers;
}

void mpg_late_savers_remove(mpg_late_savers *savers) {
  if (!savers->link) return;
  *savers->link = savers->next;
  if (savers->next) savers->next->link = savers->link;
  savers->link = NULL;
}

void mpg_late_savers_count(void) {
  while (late_savers) {
    mpg_late_savers *savers = late_savers;
    mpg_late_savers_remove(savers);
    savers->count(savers);
  }
}

uint64_t mpg_contents_tracked_savers(void) { return tracked_savers; }
void mpg_contents_count_tracked(int64_t change) { tracked_savers += (uint64_t)change; }

void mpg_contents_track(mpg_storage *storage) {
  if (!storage->tracked) mpg_contents_count_tracked(storage->savers);
  storage->tracked = true;
}

static mpg_kept_contents **find(mpg_storage *storage, uint32_t version) {
  mpg_kept_contents **link = &storage->kept;
  while (*link && (*link)->version != version) link = &(*link)->next;
  return link;
}

static void drop(mpg_kept_contents **link) {
  mpg_kept_contents *kept = *link;
  *link = kept->next;
  if (kept->copy) mpg_storage_release(kept->copy);
  mpg_free(kept);
}

void mpg_contents_drop_kept(mpg_storage *storage, uint32_t version) {
  mpg_kept_contents **link = find(storage, version);
  if (*link && --(*link)->savers == 0) drop(link);
}

mpg_storage *mpg_contents_find(mpg_storage *storage, uint32_t version, bool *no_memory) {
  if (storage->version == version) return storage;
  const mpg_kept_contents *kept = *find(storage, version);
  *no_memory = kept && !kept->copy;
  return kept ? kept->copy : NULL;
}

const char *mpg_contents_lost_text(bool no_memory) {
  return no_memory ? "there was not enough memory to keep them"
                   : "they were not kept (another thread saved or overwrote them in the meantime)";
}

bool mpg_contents_kept(mpg_storage *storage) { return *find(storage, storage->version) != NULL; }

mpg_status mpg_contents_keep(mpg_storage *storage, mpg_storage *copy) {
  mpg_kept_contents *kept = mpg_malloc(sizeof *kept);
  if (!kept) return mpg_out_of_host_memory(sizeof *kept);
  *kept = (mpg_kept_contents){.next = storage->kept, .copy = copy, .version = storage->version};
  storage->kept = kept;
  return MPG_OK;
}

void mpg_contents_hand_over(mpg_storage *storage) {
  mpg_kept_contents **link = find(storage, storage->version);
  if (storage->tracked) mpg_contents_count_tracked(-(int64_t)storage->savers);
  if (*link && storage->savers)
    (*link)->savers = storage->savers;
  else if (*link)
    drop(link); /* all savers were removed, so the copy is not needed */
  storage->savers = 0;
}
