/* Rendezvous: a barrier at which running work on several devices exchanges bytes.
 *
 * The host queues work one device at a time. The first device's work may need data from all
 * replicas (such as batch statistics) before the other devices' work has been queued. A point
 * cannot express this dependence, because the other devices' work has no ticks yet. Instead, the
 * work joins the rendezvous for its key, publishes its bytes, and waits until the expected number
 * of devices has joined. Then each device reads the bytes of all devices, in the order of device
 * rank, type and index. A device runs its work in order, so the k-th call for a key on each device
 * joins the k-th rendezvous for that key.
 *
 * Deadlock detection. If a participant is missing, the other devices wait forever. So if the host
 * waits for a device and no device makes progress for some time, all open rendezvous fail, and the
 * work that waits at them fails. The time is short (ALONE) if no other thread of the host could
 * queue the missing work.
 *
 * Ownership: the participants share a rendezvous. Threads: running work, unless stated otherwise.
 */
#ifndef MPG_DEVICE_RENDEZVOUS_H
#define MPG_DEVICE_RENDEZVOUS_H

#include "device/device.h"

typedef struct mpg_rendezvous mpg_rendezvous;

typedef struct mpg_participant {
  mpg_device *device;
  const char *key; /* interned, because keys are compared by address */
  /* Name of the exchanged data, for error messages; static. Different names distinguish uses of the
   * same key. */
  const char *who;
  int count; /* number of devices in the rendezvous */
  /* description of the data, for error messages; must be equal for all participants */
  const char *form;
  const void *data;
  size_t size;
} mpg_participant;

/* Joins a rendezvous and blocks until it is complete. Sets *place to this participant's index.
 * After success, the caller must call mpg_rendezvous_leave. */
mpg_status mpg_rendezvous_join(const mpg_participant *participant, mpg_rendezvous **joined,
                               int *place);
/* Returns the bytes of participant `place`. Valid until the caller leaves the rendezvous. */
const void *mpg_rendezvous_data(const mpg_rendezvous *rendezvous, int place);
void mpg_rendezvous_leave(mpg_rendezvous *rendezvous);

/* Fails all open rendezvous if it detects a deadlock. Called by a waiting thread after each time
 * slice. The caller zeroes `seen` before the first call. Call with the host lock held. */
typedef struct mpg_progress_watch {
  uint64_t progress;
  int idle_polls;
} mpg_progress_watch;
void mpg_rendezvous_poll(mpg_progress_watch *seen);

void mpg_rendezvous_close(void); /* fails all open rendezvous; called by the host at exit */

#endif
