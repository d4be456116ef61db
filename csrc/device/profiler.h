/* Profiler events: ops, copies and waits of each device, with begin and end times.
 *
 * Off by default; each event then costs only one relaxed load. Each device has its own buffer,
 * written only by the thread that runs the device's work. The host reads it under the host lock,
 * after stopping the profiler and when the device is idle.
 */
#ifndef MPG_DEVICE_PROFILER_H
#define MPG_DEVICE_PROFILER_H

#include "device/device.h"

typedef enum mpg_event_kind {
  MPG_EVENT_OP,
  MPG_EVENT_COPY,
  MPG_EVENT_WAIT,
  MPG_EVENT_PROGRAM
} mpg_event_kind;

typedef struct mpg_event {
  const char *name; /* name of the op; static */
  uint32_t scope;   /* number of the block's path (mpg_scope_text) */
  uint8_t kind;     /* an mpg_event_kind */
  bool backward;
  bool program; /* true for an instruction of a compiled program, false for an eager op */
  /* Ordinal of the device that is copied from or waited for; -1 means none. */
  int32_t peer;
  uint32_t stage, micro_batch; /* pipelines only: 1 + the index; 0 means none */
  uint64_t bytes;              /* size of a copy */
  int64_t begin_ns, end_ns;    /* times from mpg_clock_ns */
} mpg_event;

extern _Atomic bool mpg_profiling;
static inline bool mpg_profiler_on(void) {
  return atomic_load_explicit(&mpg_profiling, memory_order_relaxed);
}

/* Records an event. Called by the thread that runs the device's work. Drops the event if the buffer
 * is full or memory is exhausted. */
void mpg_profiler_record(mpg_device *device, const mpg_event *event);
void mpg_profiler_start(void); /* starts profiling and discards earlier events */
void mpg_profiler_stop(void);
void mpg_profiler_resume(void); /* continues after a stop; keeps earlier events */
size_t mpg_profiler_event_count(const mpg_device *device);
mpg_event mpg_profiler_event(const mpg_device *device, size_t index);

#endif
