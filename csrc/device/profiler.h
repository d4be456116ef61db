/* Profiler events: ops, copies and waits of each device, with begin and end times.
 *
 * Off by default, when recording costs one relaxed load. Each device has its own buffer, written
 * only by the thread that runs the device's work. It is read under the host lock after profiling
 * was stopped and the device is idle.
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
  const char *name; /* static; the op's name */
  uint32_t scope;   /* block path */
  uint8_t kind;     /* mpg_event_kind */
  bool backward;
  bool program;                /* an instruction of a compiled program, not an eager op */
  int32_t peer;                /* ordinal of the other device of a copy or wait; -1 means none */
  uint32_t stage, micro_batch; /* pipelines only: 1 + the index; 0 means none */
  uint64_t bytes;              /* size of a copy */
  int64_t begin_ns, end_ns;    /* mpg_clock_ns */
} mpg_event;

extern _Atomic bool mpg_profiling;
static inline bool mpg_profiler_on(void) {
  return atomic_load_explicit(&mpg_profiling, memory_order_relaxed);
}

/* Called by the thread that runs the device's work. Drops events if out of memory. */
void mpg_profiler_record(mpg_device *device, const mpg_event *event);
void mpg_profiler_start(void); /* discards earlier events */
void mpg_profiler_stop(void);
void mpg_profiler_resume(void); /* continues after a stop and keeps the events */
size_t mpg_profiler_event_count(const mpg_device *device);
mpg_event mpg_profiler_event(const mpg_device *device, size_t index);

#endif
