/* Rendezvous of devices: participants, waiting, and deadlock detection. */
#include "device/meeting.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"

typedef struct comer {
  mpg_device *device;
  void *data; /* owned */
} comer;

struct mpg_meeting {
  mpg_meeting *next; /* list of incomplete meetings */
  const char *key, *who;
  int count, come, left; /* left: participants that are done with it */
  size_t size;
  bool over; /* complete or failed */
  mpg_status status;
  char form[160], text[640]; /* text: error of a failed meeting */
  pthread_cond_t ended;
  comer comers[]; /* sorted by device id */
};

/* Runtime state. Any thread. */
static struct {
  pthread_mutex_t lock;
  mpg_meeting *open;
  uint64_t arrivals;
  bool closed;
} meetings = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Under the lock --------------------------------------------------------------------------- */

static void end(mpg_meeting *meeting) {
  mpg_meeting **at = &meetings.open;
  while (*at != meeting) at = &(*at)->next;
  *at = meeting->next;
  meeting->over = true;
  pthread_cond_broadcast(&meeting->ended);
}

static bool has_come(const mpg_meeting *meeting, const mpg_device *device) {
  for (int i = 0; i < meeting->come; i++)
    if (meeting->comers[i].device == device) return true;
  return false;
}

static mpg_meeting *find(const mpg_participant *p) {
  for (mpg_meeting *meeting = meetings.open; meeting; meeting = meeting->next)
    if (meeting->key == p->key && meeting->who == p->who && !has_come(meeting, p->device))
      return meeting;
  return NULL;
}

static mpg_status begin(const mpg_participant *p, mpg_meeting **result) {
  size_t size = sizeof(mpg_meeting) + (size_t)p->count * sizeof(comer);
  mpg_meeting *meeting = mpg_calloc(1, size);
  if (!meeting) return mpg_out_of_host_memory(size);
  meeting->key = p->key;
  meeting->who = p->who;
  meeting->count = p->count;
  meeting->size = p->size;
  snprintf(meeting->form, sizeof meeting->form, "%s", p->form);
  pthread_cond_init(&meeting->ended, NULL);
  mpg_meeting **last = &meetings.open;
  while (*last) last = &(*last)->next;
  *last = *result = meeting;
  return MPG_OK;
}

static void list_devices(const mpg_meeting *meeting, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < meeting->come && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                             mpg_device_text(meeting->comers[i].device));
}

static bool before(mpg_device_id a, mpg_device_id b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  return a.type != b.type ? a.type < b.type : a.index < b.index;
}

static void add(mpg_meeting *meeting, mpg_device *device, void *data) {
  int at = meeting->come++;
  for (; at > 0 && before(device->id, meeting->comers[at - 1].device->id); at--)
    meeting->comers[at] = meeting->comers[at - 1];
  meeting->comers[at] = (comer){device, data};
  meetings.arrivals++;
}

/* Fails the meeting for all participants if their descriptions or sizes differ. */
static void check_alike(mpg_meeting *meeting, const mpg_participant *p) {
  if (meeting->count == p->count && meeting->size == p->size && !strcmp(meeting->form, p->form))
    return;
  meeting->status = MPG_ERROR;
  snprintf(meeting->text, sizeof meeting->text,
           "'%s': replicas differ in %s: %s of %d devices on %s, and %s of %d devices on %s",
           p->key, p->who, meeting->form, meeting->count,
           mpg_device_text(meeting->comers[0].device), p->form, p->count,
           mpg_device_text(p->device));
}

static void give_up(mpg_meeting *meeting) {
  char devices[256];
  list_devices(meeting, devices, sizeof devices);
  meeting->status = MPG_ERROR;
  snprintf(meeting->text, sizeof meeting->text,
           "'%s': %s need all %d devices, of which %d %s come (%s), and nothing is queued that "
           "brings the others; they must be devices of this process, not of other ranks. Call the "
           "block on each device, and run backward for each, before a result is read; or the work "
           "of another device has failed before it came here",
           meeting->key, meeting->who, meeting->count, meeting->come,
           meeting->come == 1 ? "has" : "have", devices);
  end(meeting);
}

static mpg_status refuse(void) {
  return mpg_fail(MPG_ERROR, "mpgluon has been shut down while replicas waited for each other");
}

/* --- Running work ----------------------------------------------------------------------------- */

static void free_meeting(mpg_meeting *meeting) {
  for (int i = 0; i < meeting->come; i++) mpg_free(meeting->comers[i].data);
  pthread_cond_destroy(&meeting->ended);
  mpg_free(meeting);
}

void mpg_meeting_leave(mpg_meeting *meeting) {
  pthread_mutex_lock(&meetings.lock);
  bool last = ++meeting->left == meeting->come;
  pthread_mutex_unlock(&meetings.lock);
  if (last) free_meeting(meeting);
}

/* Joins a meeting and waits for its end. Takes over *data. The lock is held. */
static mpg_status come(const mpg_participant *p, void **data, mpg_meeting **meeting) {
  if (meetings.closed) return refuse();
  if (!(*meeting = find(p))) MPG_TRY(begin(p, meeting));
  mpg_meeting *m = *meeting;
  if (m->come) check_alike(m, p);
  add(m, p->device, *data);
  *data = NULL;
  if (m->come == m->count || m->status != MPG_OK) end(m);
  if (m->over) return MPG_OK;
  atomic_store(&p->device->at.meeting, true);
  while (!m->over) pthread_cond_wait(&m->ended, &meetings.lock);
  atomic_store(&p->device->at.meeting, false);
  return MPG_OK;
}

mpg_status mpg_meet(const mpg_participant *p, mpg_meeting **meeting, int *place) {
  if (mpg_engine_get_mode() != MPG_ENGINE_ASYNC)
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "'%s': %s of several devices need them to run side by side, and not in the "
                    "engine's mode '%s', which waits for each piece of work; use the mode 'async'",
                    p->key, p->who, mpg_engine_get_mode() == MPG_ENGINE_SYNC ? "sync" : "shuffle");
  if (p->device->backend->work_waits) MPG_TRY(p->device->backend->work_waits(p->device));
  void *data = mpg_malloc(p->size ? p->size : 1);
  if (!data) return mpg_out_of_host_memory(p->size);
  memcpy(data, p->data, p->size);
  mpg_meeting *met = NULL;
  pthread_mutex_lock(&meetings.lock);
  mpg_status status = come(p, &data, &met);
  pthread_mutex_unlock(&meetings.lock);
  mpg_free(data);
  if (status != MPG_OK) return status;
  if (met->status != MPG_OK) {
    status = mpg_fail(met->status, "%s", met->text);
    mpg_meeting_leave(met);
    return status;
  }
  for (int i = 0; i < met->count; i++)
    if (met->comers[i].device == p->device) *place = i;
  *meeting = met;
  return MPG_OK;
}

const void *mpg_meeting_data(const mpg_meeting *meeting, int place) {
  return meeting->comers[place].data;
}

/* --- The host --------------------------------------------------------------------------------- */

/* True if a device can progress without a meeting or another device. */
static bool any_runs(uint64_t *progress) {
  for (int i = 0; i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    *progress += atomic_load(device->completed) + device->submissions;
    if (!mpg_device_idle(device) && !atomic_load(&device->at.meeting) &&
        !atomic_load_explicit(&device->at.peer, memory_order_relaxed))
      return true;
  }
  return false;
}

void mpg_meetings_look(mpg_standstill *seen) {
  enum { ALONE = 4, WITH_OTHERS = 200 }; /* checks, about 50 ms apart */
  pthread_mutex_lock(&meetings.lock);
  uint64_t arrivals = meetings.arrivals, progress = arrivals;
  bool none = !meetings.open;
  pthread_mutex_unlock(&meetings.lock);
  bool stands = !none && !any_runs(&progress) && progress == seen->progress;
  seen->looks = stands ? seen->looks + 1 : 0;
  seen->progress = progress;
  if (seen->looks < ALONE || (seen->looks < WITH_OTHERS && !mpg_host_alone())) return;
  pthread_mutex_lock(&meetings.lock);
  while (meetings.open && meetings.arrivals == arrivals) give_up(meetings.open);
  pthread_mutex_unlock(&meetings.lock);
  seen->looks = 0;
}

void mpg_meetings_close(void) {
  pthread_mutex_lock(&meetings.lock);
  meetings.closed = true;
  while (meetings.open) {
    meetings.open->status = refuse();
    snprintf(meetings.open->text, sizeof meetings.open->text, "%s", mpg_error_text());
    end(meetings.open);
  }
  pthread_mutex_unlock(&meetings.lock);
}
