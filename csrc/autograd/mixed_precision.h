/* User op calls under automatic mixed precision (op/precision/precision.h). Threads: callers hold
 * the host lock. */
#ifndef MPG_AUTOGRAD_MIXED_PRECISION_H
#define MPG_AUTOGRAD_MIXED_PRECISION_H

#include "autograd/array.h"

/* Same as mpg_call_as, but first casts the inputs according to the precision rules. Each cast is a
 * separate op call, emitted into the same trace or recorded on the tape. */
mpg_status mpg_precision_call(mpg_trace *trace, const mpg_op *op, const void *params,
                              mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                              int num_visible, mpg_array *const *out, bool separate);

/* Call an op without the precision rules (record.c). mpg_call_in emits the op into `trace`, or
 * runs it if `trace` is NULL. mpg_call_plain determines the trace itself; it runs the component
 * ops of a composed op. */
mpg_status mpg_call_in(mpg_trace *trace, const mpg_op *op, const void *params,
                       mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                       int num_visible, mpg_array *const *out, bool separate);
mpg_status mpg_call_plain(const mpg_op *op, const void *params, mpg_array *const *inputs,
                          int num_inputs, mpg_array *outputs, int num_visible);
#endif
