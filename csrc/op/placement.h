/* Placement: the rules that choose the device of an op, in eager calls and in graphs.
 *
 * Copies, and ops that create an array, run on the device that their parameters name. Every other
 * op runs on the device of its inputs, which must all be on one device: nothing is copied silently,
 * except for ops in a group (autograd/groups.h). Threads: callers hold the host lock.
 */
#ifndef MPG_OP_PLACEMENT_H
#define MPG_OP_PLACEMENT_H

#include "op/op.h"

/* Returns the device of one of the inputs. */
typedef mpg_device_id (*mpg_input_device_fn)(const void *inputs, int index);

/* Returns the device that the parameters name; type 0 if they name none. */
mpg_device_id mpg_op_named_device(const mpg_op *op, const void *params);

/* Determines the device of an op. `otherwise` is the device of an op that has no inputs and names
 * no device. If the inputs are on different devices, fails with an error that lists them. */
mpg_status mpg_op_place(const mpg_op *op, const void *params, const void *inputs, int num_inputs,
                        mpg_input_device_fn device_of, mpg_device_id otherwise,
                        mpg_device_id *device);

/* Returns the device of an op whose inputs will be moved there: the device of its group, else the
 * first known device of an input, else the device that the parameters name. A copy runs on the
 * device that it names. Returns type 0 if the device is unknown. */
mpg_device_id mpg_op_place_in_group(const mpg_op *op, const void *params, const void *inputs,
                                    int num_inputs, mpg_input_device_fn device_of,
                                    mpg_device_id group);

#endif
