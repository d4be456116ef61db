/* Device groups: ops in a group run on the group's device. Inputs on other devices are copied there
 * first.
 *
 * The active group is per thread. Groups are used if the user assigns a device to every op, as with
 * AttrScope(ctx_group=...) and group2ctx. Outside of a group, an op fails if its inputs are on
 * different devices. Threads: callers hold the host lock.
 */
#ifndef MPG_AUTOGRAD_GROUPS_H
#define MPG_AUTOGRAD_GROUPS_H

#include "autograd/trace.h"

typedef struct mpg_group {
  bool active;
  /* The device that the user named for the group. If none was named, the type is 0, and an op runs
   * on the device of its first input. */
  mpg_device_id device;
} mpg_group;

mpg_group mpg_group_get(void);
mpg_group mpg_group_set(mpg_group group); /* returns the previously active group */

/* Sets `target`, which is empty, to the array on `device`: a copy, or a view if the array is
 * already there. In either case `target` is a separate node of the tape or graph, so backward
 * first sums the gradients of all uses of `target` and then adds the sum to the gradient of
 * `array`. This makes results bit-identical for all placements of groups. Within a trace, there is
 * one copy per value and device. */
mpg_status mpg_group_move(const mpg_array *array, mpg_device_id device, mpg_array *target);

/* Same as mpg_call_as, inside a group. */
mpg_status mpg_group_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, mpg_array *const *out, bool separate);

#endif
