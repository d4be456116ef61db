/* The mode of a thread's op calls: recording, training, scope, trace, group, and the switches of
 * mx.np.
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
  bool np_array, np_shape; /* this thread's switches (mpg_np_array, mpg_np_shape) */
  uint32_t scope;
  uint64_t steps;
  mpg_trace *trace; /* the active trace, borrowed; NULL if none */
  mpg_group group;
} mpg_call_mode;
/* Hidden visibility makes the thread-local lookup as fast as for a static variable. */
extern __attribute__((visibility("hidden"))) _Thread_local mpg_call_mode mpg_mode;

#endif
