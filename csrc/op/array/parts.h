/* Ops whose outputs are contiguous parts of their input, or the other way around. Memory plans
 * place them in each other's memory; the kernels then have nothing to copy.
 *
 * These functions are stateless and may be called from any thread. */
#ifndef MPG_OP_ARRAY_PARTS_H
#define MPG_OP_ARRAY_PARTS_H

#include "op/op.h"

/* True if an output of the op is a contiguous part of its only input, which begins `*offset` bytes
 * after the input. */
bool mpg_find_part(const mpg_op *op, const void *params, const mpg_desc *input, uint32_t output,
                   size_t *offset);
/* True if an output of this shape consists of the op's inputs, one after another. */
bool mpg_joins_in_order(const mpg_op *op, const void *params, const mpg_shape *output);

#endif
