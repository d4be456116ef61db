/* Equivalents of ops that can be divided over devices along more axes than the ops themselves. The
 * functions may be called from any thread. */
#ifndef MPG_OP_LAYERS_EQUIVALENTS_H
#define MPG_OP_LAYERS_EQUIVALENTS_H

#include "op/op.h"

/* Emits BatchNorm or _batch_norm_relu (`g->op`) with the statistics of the batch as elementwise ops
 * and sums, which can be divided along all axes. Updates the moving averages, as the op does.
 * Leaves the mask of _batch_norm_relu out, because only its gradient reads it. */
void mpg_compose_batch_norm(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs);

/* Returns true if the op is a Winograd convolution that has its weight as input 2, and no fused
 * ops. Then sets *to to the parameters of _convolution_channels_last for the same result. */
bool mpg_winograd_undo(const mpg_op *op, const void *params, mpg_convolution_params *to);

#endif
