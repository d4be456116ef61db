/* Meetings: work of several devices, queued one piece after the other, that exchanges bytes.
 *
 * The statistics of replicas are needed while the host still queues the work of the first one, so
 * no point says what the work waits for. It comes to a meeting, which a key names, brings its
 * bytes, and waits until as many devices as are to meet have come; then each gets the bytes of all,
 * in the order of the devices' kinds and numbers. A device has one piece of work at a time, so the
 * k-th meetings of a key are those of the k-th calls.
 *
 * Who does not come leaves the others waiting. While the host waits for a device, and no device has
 * anything to do but wait, meetings are given up and their work fails. Devices count as such after
 * a while in which nothing moved: a short one where no other thread of the host could queue the
 * missing work.
 *
 * Ownership: a meeting is its participants' together. Threads: running work, unless it says so.
 */
#ifndef MPG_DEVICE_MEETING_H
#define MPG_DEVICE_MEETING_H

#include "device/device.h"

typedef struct mpg_meeting mpg_meeting;

typedef struct mpg_participant {
  mpg_device *device;
  const char *key;  /* interned */
  const char *who;  /* of several meetings of the key: in words; static */
  int count;        /* of devices that meet */
  const char *form; /* what the bytes are, for errors: the same for all */
  const void *data;
  size_t size;
} mpg_participant;

/* Waits until all have come. *place: which of them this one is. The meeting is to be left. */
mpg_status mpg_meet(const mpg_participant *participant, mpg_meeting **meeting, int *place);
const void *mpg_meeting_data(const mpg_meeting *meeting, int place); /* valid until it is left */
void mpg_meeting_leave(mpg_meeting *meeting);

/* By a thread that waits, each time it has waited in vain for a while; zeroed at first. Host lock.
 */
typedef struct mpg_standstill {
  uint64_t progress;
  int looks;
} mpg_standstill;
void mpg_meetings_look(mpg_standstill *seen);

void mpg_meetings_close(void); /* at exit: nobody waits any more. Host */

#endif
