/* Rendezvous of work on several devices, at which the devices exchange bytes.
 *
 * The host queues the work one device at a time. The first device may need the statistics of all
 * replicas before the work of the other devices is queued, so no point can express this dependence.
 * The work joins the rendezvous of its key, publishes its bytes, and waits until the expected
 * number of devices has joined. Then each device reads the bytes of all devices, in the order of
 * device rank, type and index. A device runs one piece of work at a time, so the k-th rendezvous of
 * a key consists of the k-th calls.
 *
 * Deadlock detection. A missing participant leaves the other devices waiting. If the host waits for
 * a device and no device makes progress for some time, open rendezvous and their work fail. The
 * time is short if no other thread of the host could queue the missing work.
 *
 * Ownership: the participants share a rendezvous. Threads: running work, unless stated otherwise.
 */
#ifndef MPG_DEVICE_RENDEZVOUS_H
#define MPG_DEVICE_RENDEZVOUS_H

#include "device/device.h"

typedef struct mpg_rendezvous mpg_rendezvous;

typedef struct mpg_participant {
  mpg_device *device;
  const char *key;  /* rendezvous key; interned */
  const char *who;  /* the exchanged data in words, which distinguishes uses of a key; static */
  int count;        /* number of devices in the rendezvous */
  const char *form; /* description of the bytes, for errors; equal for all participants */
  const void *data;
  size_t size;
} mpg_participant;

/* Joins a rendezvous and blocks until it is complete. Sets *place to this participant's index. On
 * success, the caller must leave the rendezvous. */
mpg_status mpg_rendezvous_join(const mpg_participant *participant, mpg_rendezvous **joined,
                               int *place);
/* Valid until the caller leaves the rendezvous. */
const void *mpg_rendezvous_data(const mpg_rendezvous *rendezvous, int place);
void mpg_rendezvous_leave(mpg_rendezvous *rendezvous);

/* Called by a waiting thread after each time slice without progress. Fails the open rendezvous if
 * it detects a deadlock. The caller zeroes `seen` before the first call. Host lock. */
typedef struct mpg_progress_watch {
  uint64_t progress;
  int idle_polls;
} mpg_progress_watch;
void mpg_rendezvous_poll(mpg_progress_watch *seen);

void mpg_rendezvous_close(void); /* fails all open rendezvous; called by the host at exit */

#endif
