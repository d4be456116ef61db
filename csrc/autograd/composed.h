/* Calls of composed ops (op/op.h: MPG_OP_COMPOSED). Threads: callers hold the host lock. */
#ifndef MPG_AUTOGRAD_COMPOSED_H
#define MPG_AUTOGRAD_COMPOSED_H

#include "autograd/array.h"

/* Same as mpg_call, for a composed op outside of traces. */
mpg_status mpg_composed_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                             int num_inputs, mpg_array *outputs, int num_visible,
                             mpg_array *const *out);

#endif
