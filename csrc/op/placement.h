/* The device of an op: one rule, for eager calls and for graphs.
 *
 * A copy, and an op that creates an array, run on the device that their parameters name. Every
 * other op runs on the device of its inputs, which must be on one device: nothing is copied
 * silently, but for ops in a group (autograd/groups.h). Threads: host lock.
 */
#ifndef MPG_OP_PLACEMENT_H
#define MPG_OP_PLACEMENT_H

#include "op/op.h"

/* The device of one of the inputs. */
typedef mpg_device_id (*mpg_input_device_fn)(const void *inputs, int index);

/* The device that the parameters name; type 0: none. */
mpg_device_id mpg_op_named_device(const mpg_op *op, const void *params);

/* otherwise: where an op without inputs runs that names no device. Fails, naming which input is
 * where, when the inputs are on different devices. */
mpg_status mpg_op_place(const mpg_op *op, const void *params, const void *inputs, int num_inputs,
                        mpg_input_device_fn device_of, mpg_device_id otherwise,
                        mpg_device_id *device);

/* The device of an op whose inputs are moved to it: that of its group, else of its first input with
 * a known device, else the named one. A copy goes where it is told. Type 0: not known. */
mpg_device_id mpg_op_place_in_group(const mpg_op *op, const void *params, const void *inputs,
                                    int num_inputs, mpg_input_device_fn device_of,
                                    mpg_device_id group);

#endif
