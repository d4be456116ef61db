/* What a thread does with the ops it calls: records them, traces them, and under which names. A struct of its own for each thread, so
 * that a call looks it up once. Threads: each its own. */
#ifndef MPG_AUTOGRAD_MODE_H
#define MPG_AUTOGRAD_MODE_H

#include "autograd/groups.h"

typedef struct mpg_mode {
  bool recording, training;
  uint32_t scope;   /* block path */
  uint64_t steps;   /* of loops, as of a submission */
  mpg_trace *trace; /* the active one, borrowed; NULL: none */
  mpg_group group;
} mpg_mode;

mpg_mode *mpg_mode_get(void); /* this thread's */

#endif
