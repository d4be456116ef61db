/* Rendezvous between devices: joining, waiting and deadlock detection. */
#include "device/rendezvous.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"

typedef struct member {
  mpg_device *device;
  void *data; /* owned */
} member;

struct mpg_rendezvous {
  mpg_rendezvous *next; /* next incomplete rendezvous */
  const char *key, *who;
  int count, joined, left; /* left: number of participants that have left */
  size_t size;
  bool over; /* complete or failed */
  mpg_status status;
  char form[160], text[640]; /* text: error message if the rendezvous has failed */
  pthread_cond_t ended;
  member members[]; /* sorted by device id */
};

/* Runtime state: all incomplete rendezvous. Guarded by `lock`, so any thread may use it. */
static struct {
  pthread_mutex_t lock;
  mpg_rendezvous *open;
  uint64_t arrivals;
  bool closed;
} rendezvous_list = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Under the lock --------------------------------------------------------------------------- */

static void end(mpg_rendezvous *rendezvous) {
  mpg_rendezvous **at = &rendezvous_list.open;
  while (*at != rendezvous) at = &(*at)->next;
  *at = rendezvous->next;
  rendezvous->over = true;
  pthread_cond_broadcast(&rendezvous->ended);
}

static bool has_joined(const mpg_rendezvous *rendezvous, const mpg_device *device) {
  for (int i = 0; i < rendezvous->joined; i++)
    if (rendezvous->members[i].device == device) return true;
  return false;
}

static mpg_rendezvous *find(const mpg_participant *p) {
  for (mpg_rendezvous *rendezvous = rendezvous_list.open; rendezvous; rendezvous = rendezvous->next)
    if (rendezvous->key == p->key && rendezvous->who == p->who &&
        !has_joined(rendezvous, p->device))
      return rendezvous;
  return NULL;
}

static mpg_status begin(const mpg_participant *p, mpg_rendezvous **result) {
  size_t size = sizeof(mpg_rendezvous) + (size_t)p->count * sizeof(member);
  mpg_rendezvous *rendezvous = mpg_calloc(1, size);
  if (!rendezvous) return mpg_out_of_host_memory(size);
  rendezvous->key = p->key;
  rendezvous->who = p->who;
  rendezvous->count = p->count;
  rendezvous->size = p->size;
  snprintf(rendezvous->form, sizeof rendezvous->form, "%s", p->form);
  pthread_cond_init(&rendezvous->ended, NULL);
  mpg_rendezvous **last = &rendezvous_list.open;
  while (*last) last = &(*last)->next;
  *last = *result = rendezvous;
  return MPG_OK;
}

static void list_devices(const mpg_rendezvous *rendezvous, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < rendezvous->joined && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                             mpg_device_text(rendezvous->members[i].device));
}

static bool before(mpg_device_id a, mpg_device_id b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  return a.type != b.type ? a.type < b.type : a.index < b.index;
}

static void add(mpg_rendezvous *rendezvous, mpg_device *device, void *data) {
  int at = rendezvous->joined++;
  for (; at > 0 && before(device->id, rendezvous->members[at - 1].device->id); at--)
    rendezvous->members[at] = rendezvous->members[at - 1];
  rendezvous->members[at] = (member){device, data};
  rendezvous_list.arrivals++;
}

/* Fails the rendezvous for all participants if the new participant's description, size or device
 * count differs from the first one's. */
static void check_alike(mpg_rendezvous *rendezvous, const mpg_participant *p) {
  if (rendezvous->count == p->count && rendezvous->size == p->size &&
      !strcmp(rendezvous->form, p->form))
    return;
  rendezvous->status = MPG_ERROR;
  snprintf(rendezvous->text, sizeof rendezvous->text,
           "'%s': replicas differ in %s: %s of %d devices on %s, and %s of %d devices on %s",
           p->key, p->who, rendezvous->form, rendezvous->count,
           mpg_device_text(rendezvous->members[0].device), p->form, p->count,
           mpg_device_text(p->device));
}

static void fail_deadlocked(mpg_rendezvous *rendezvous) {
  char devices[256];
  list_devices(rendezvous, devices, sizeof devices);
  rendezvous->status = MPG_ERROR;
  snprintf(rendezvous->text, sizeof rendezvous->text,
           "'%s': %s need all %d devices, but only %d %s joined (%s), and no queued work lets the "
           "others join; they must be devices of this process, not of other ranks. Call the block "
           "on each device, and run backward for each, before reading a result; or the work of "
           "another device has failed before it joined",
           rendezvous->key, rendezvous->who, rendezvous->count, rendezvous->joined,
           rendezvous->joined == 1 ? "has" : "have", devices);
  end(rendezvous);
}

static mpg_status refuse(void) {
  return mpg_fail(MPG_ERROR, "mpgluon has been shut down while replicas waited for each other");
}

/* --- Running work ----------------------------------------------------------------------------- */

static void free_rendezvous(mpg_rendezvous *rendezvous) {
  for (int i = 0; i < rendezvous->joined; i++) mpg_free(rendezvous->members[i].data);
  pthread_cond_destroy(&rendezvous->ended);
  mpg_free(rendezvous);
}

void mpg_rendezvous_leave(mpg_rendezvous *rendezvous) {
  pthread_mutex_lock(&rendezvous_list.lock);
  bool last = ++rendezvous->left == rendezvous->joined;
  pthread_mutex_unlock(&rendezvous_list.lock);
  if (last) free_rendezvous(rendezvous);
}

/* Joins a rendezvous and waits until it is complete or has failed. Takes ownership of *data. The
 * lock is held. */
static mpg_status join(const mpg_participant *p, void **data, mpg_rendezvous **rendezvous) {
  if (rendezvous_list.closed) return refuse();
  if (!(*rendezvous = find(p))) MPG_TRY(begin(p, rendezvous));
  mpg_rendezvous *m = *rendezvous;
  if (m->joined) check_alike(m, p);
  add(m, p->device, *data);
  *data = NULL;
  if (m->joined == m->count || m->status != MPG_OK) end(m);
  if (m->over) return MPG_OK;
  atomic_store(&p->device->at.rendezvous, true);
  while (!m->over) pthread_cond_wait(&m->ended, &rendezvous_list.lock);
  atomic_store(&p->device->at.rendezvous, false);
  return MPG_OK;
}

mpg_status mpg_rendezvous_join(const mpg_participant *p, mpg_rendezvous **joined, int *place) {
  if (mpg_engine_get_mode() != MPG_ENGINE_ASYNC)
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "'%s': %s of several devices must run concurrently, but the engine's mode '%s' "
                    "runs one piece of work at a time; use the mode 'async'",
                    p->key, p->who, mpg_engine_get_mode() == MPG_ENGINE_SYNC ? "sync" : "shuffle");
  if (p->device->backend->work_waits) MPG_TRY(p->device->backend->work_waits(p->device));
  void *data = mpg_malloc(p->size ? p->size : 1);
  if (!data) return mpg_out_of_host_memory(p->size);
  memcpy(data, p->data, p->size);
  mpg_rendezvous *rendezvous = NULL;
  pthread_mutex_lock(&rendezvous_list.lock);
  mpg_status status = join(p, &data, &rendezvous);
  pthread_mutex_unlock(&rendezvous_list.lock);
  mpg_free(data);
  if (status != MPG_OK) return status;
  if (rendezvous->status != MPG_OK) {
    status = mpg_fail(rendezvous->status, "%s", rendezvous->text);
    mpg_rendezvous_leave(rendezvous);
    return status;
  }
  for (int i = 0; i < rendezvous->count; i++)
    if (rendezvous->members[i].device == p->device) *place = i;
  *joined = rendezvous;
  return MPG_OK;
}

const void *mpg_rendezvous_data(const mpg_rendezvous *rendezvous, int place) {
  return rendezvous->members[place].data;
}

/* --- The host --------------------------------------------------------------------------------- */

/* True if the work of any device waits neither at a rendezvous nor for another device. If false,
 * has added all devices' progress counters to *progress. */
static bool any_runs(uint64_t *progress) {
  for (int i = 0; i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    *progress += atomic_load(device->completed) + device->submissions;
    if (!mpg_device_idle(device) && !atomic_load(&device->at.rendezvous) &&
        !atomic_load_explicit(&device->at.peer, memory_order_relaxed))
      return true;
  }
  return false;
}

void mpg_rendezvous_poll(mpg_progress_watch *seen) {
  enum { ALONE = 4, WITH_OTHERS = 200 }; /* limits in polls, which are about 50 ms apart */
  pthread_mutex_lock(&rendezvous_list.lock);
  uint64_t arrivals = rendezvous_list.arrivals, progress = arrivals;
  bool none = !rendezvous_list.open;
  pthread_mutex_unlock(&rendezvous_list.lock);
  bool deadlocked = !none && !any_runs(&progress) && progress == seen->progress;
  seen->idle_polls = deadlocked ? seen->idle_polls + 1 : 0;
  seen->progress = progress;
  if (seen->idle_polls < ALONE || (seen->idle_polls < WITH_OTHERS && !mpg_host_alone())) return;
  pthread_mutex_lock(&rendezvous_list.lock);
  while (rendezvous_list.open && rendezvous_list.arrivals == arrivals)
    fail_deadlocked(rendezvous_list.open);
  pthread_mutex_unlock(&rendezvous_list.lock);
  seen->idle_polls = 0;
}

void mpg_rendezvous_close(void) {
  pthread_mutex_lock(&rendezvous_list.lock);
  rendezvous_list.closed = true;
  while (rendezvous_list.open) {
    rendezvous_list.open->status = refuse();
    snprintf(rendezvous_list.open->text, sizeof rendezvous_list.open->text, "%s", mpg_error_text());
    end(rendezvous_list.open);
  }
  pthread_mutex_unlock(&rendezvous_list.lock);
}
