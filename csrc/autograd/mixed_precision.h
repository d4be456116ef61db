/* Calls of users under automatic mixed precision (op/precision/precision.h). Threads: host lock. */
#ifndef MPG_AUTOGRAD_MIXED_PRECISION_H
#define MPG_AUTOGRAD_MIXED_PRECISION_H

#include "autograd/array.h"

/* mpg_call_as, with inputs cast as the rules say; the casts are calls of their own, in the same
 * trace or on the tape. */
mpg_status mpg_precision_call(mpg_trace *trace, const mpg_op *op, const void *params,
                              mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                              int num_visible, mpg_array *const *out, bool separate);

/* Without the rules: in a given trace or none; and without `out`, for ops that stand in the place
 * of another (record.c). */
mpg_status mpg_call_in(mpg_trace *trace, const mpg_op *op, const void *params,
                       mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                       int num_visible, mpg_array *const *out, bool separate);
mpg_status mpg_call_plain(const mpg_op *op, const void *params, mpg_array *const *inputs,
                          int num_inputs, mpg_array *outputs, int num_visible);
#endif
