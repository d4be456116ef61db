/* Groups: ops in a group run on its device; copies of inputs from other devices are inserted for
 * them.
 *
 * The mode is per thread; programs switch it on where a user names the device of every op, as
 * AttrScope(ctx_group=...) does with group2ctx. Outside, an op with inputs on different devices
 * stays an error. Threads: host lock.
 */
#ifndef MPG_AUTOGRAD_GROUPS_H
#define MPG_AUTOGRAD_GROUPS_H

#include "autograd/trace.h"

typedef struct mpg_group {
  bool active;
  mpg_device_id device; /* type 0: no device is named; an op runs where its first input is */
} mpg_group;

mpg_group mpg_group_get(void);
mpg_group mpg_group_set(mpg_group group); /* returns the former one */

/* The array on that device; target is empty. Where it is there already, a view: its gradients are
 * summed before they join others, as they are behind a copy, so that bits do not depend on where
 * groups are. Within a trace, one copy per value and device. */
mpg_status mpg_group_move(const mpg_array *array, mpg_device_id device, mpg_array *target);

/* mpg_call inside a group. */
mpg_status mpg_group_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, mpg_array *const *out, bool separate);

#endif
