/* The mode of a thread's op calls: recording, training, scope, trace and group.
 *
 * Ownership: the trace is borrowed. Threads: each thread has its own mode.
 */
#ifndef MPG_AUTOGRAD_MODE_H
#define MPG_AUTOGRAD_MODE_H

#include "autograd/autograd.h"
#include "autograd/groups.h"
#include "autograd/trace.h"

/* All per-thread state of op calls, in one struct so that a call needs only one thread-local
 * lookup. */
typedef struct mpg_call_mode {
  bool recording, training, uncast;
  uint32_t scope;
  uint64_t steps;
  mpg_trace *trace; /* the active trace, borrowed; NULL if none */
  mpg_group group;
} mpg_call_mode;
/* Hidden visibility makes the thread-local lookup as fast as for a static variable. */
extern __attribute__((visibility("hidden"))) _Thread_local mpg_call_mode mpg_mode;

#endif
