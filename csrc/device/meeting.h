/* Meetings: rendezvous of the work of several devices, which the host queues one device at a time,
 * to exchange bytes.
 *
 * The statistics of replicas are needed while the host still queues the work of the first one, so
 * no point can express this dependence. The work joins the rendezvous of its key, publishes its
 * bytes, and waits until the expected number of devices has joined. Then each device reads the
 * bytes of all, in the order of device rank, type and index. A device runs one piece of work at a
 * time, so the k-th meeting of a key consists of the k-th calls.
 *
 * Deadlock detection. A missing participant leaves the other devices waiting. If the host waits for
 * a device and no device can progress, open meetings fail, and their work with them. This is
 * decided after a time without progress, which is short if no other thread of the host could queue
 * the missing work.
 *
 * Ownership: the participants share a meeting. Threads: running work, unless stated otherwise.
 */
#ifndef MPG_DEVICE_MEETING_H
#define MPG_DEVICE_MEETING_H

#include "device/device.h"

typedef struct mpg_meeting mpg_meeting;

typedef struct mpg_participant {
  mpg_device *device;
  const char *key;  /* rendezvous key; interned */
  const char *who;  /* distinguishes meetings of the same key, in words; static */
  int count;        /* number of devices in the meeting */
  const char *form; /* description of the bytes, for errors; equal for all participants */
  const void *data;
  size_t size;
} mpg_participant;

/* Joins a meeting and blocks until it is complete. Sets *place to this participant's index. On
 * success, the caller must leave the meeting. */
mpg_status mpg_meet(const mpg_participant *participant, mpg_meeting **meeting, int *place);
/* Valid until the caller leaves the meeting. */
const void *mpg_meeting_data(const mpg_meeting *meeting, int place);
void mpg_meeting_leave(mpg_meeting *meeting);

/* Called by a waiting thread after each time slice without progress. Fails the open meetings on a
 * deadlock. `seen` is zeroed at first. Host lock. */
typedef struct mpg_standstill {
  uint64_t progress;
  int looks;
} mpg_standstill;
void mpg_meetings_look(mpg_standstill *seen);

void mpg_meetings_close(void); /* at exit: fails all open meetings. Host */

#endif
