/* Cumulative sums: inference and gradient. */
#include <string.h>

#include "op/infer.h"

mpg_status mpg_infer_cumsum(mpg_infer *infer) {
  const mpg_cumsum_params *params = infer->params;
  const mpg_desc *a = &infer->inputs[0];
  mpg_dtype dtype = params->dtype == MPG_DTYPE_NONE ? a->dtype : (mpg_dtype)params->dtype;
  mpg_shape shape = a->shape;
  if (params->axis.present && shape.ndim >= 0) {
    int axis;
    MPG_TRY(mpg_axis_normalize(params->axis.value, shape.ndim, infer->op->name, &axis));
  } else if (mpg_shape_known(&shape)) {
    shape = (mpg_shape){.ndim = 1, .dims = {mpg_shape_size(&shape)}};
  } else {
    shape = (mpg_shape){.ndim = 1, .dims = {-1}};
  }
  mpg_infer_set(infer, 0, &shape, dtype);
  return MPG_OK;
}

/* Element i contributes to result i and all later results, so its gradient is the sum of their
 * gradients: a reverse cumulative sum. */
void mpg_gradient_cumsum(mpg_gradient *g) {
  const mpg_desc *a = mpg_value_desc(g, g->inputs[0]);
  mpg_cumsum_params params = *(const mpg_cumsum_params *)g->params;
  params.reverse = !params.reverse;
  params.dtype = a->dtype;
  g->in_grads[0] =
      mpg_emit_reshape(g, mpg_emit1(g, MPG_OP__np_cumsum, &params, g->out_grads[0]), &a->shape);
}
