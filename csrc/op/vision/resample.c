/* Resizing along an axis and its gradient. Resizing is linear, so the gradient is the transposed
 * map. */
#include "op/vision/resample.h"

#include <string.h>

#include "op/infer.h"
#include "op/vision/sampling.h"

mpg_status mpg_infer_resample(mpg_infer *infer) {
  const mpg_resample_params *params = infer->params;
  mpg_shape shape = infer->inputs[0].shape;
  if (shape.ndim >= 0) {
    int axis;
    MPG_TRY(mpg_axis_normalize(params->axis.value, shape.ndim, infer->op->name, &axis));
    int64_t from = params->transposed ? params->size : params->length, given = shape.dims[axis];
    if (given >= 0 && given != from)
      return mpg_infer_fail(infer, "data has %lld elements along axis %d, not %lld",
                            (long long)given, axis, (long long)from);
    shape.dims[axis] = params->transposed ? params->length : params->size;
  }
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

void mpg_gradient_resample(mpg_gradient *g) {
  mpg_resample_params params = *(const mpg_resample_params *)g->params;
  params.transposed = !params.transposed;
  g->in_grads[0] = mpg_emit1(g, MPG_OP__resample, &params, g->out_grads[0]);
}

mpg_value mpg_emit_resample(mpg_gradient *g, mpg_value data, int axis, int64_t size, int kind,
                            bool align_corners) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_resample_params params;
  memset(&params, 0, sizeof params);
  params.axis = (mpg_opt_int){.present = true, .value = axis};
  params.length = mpg_value_desc(g, data)->shape.dims[axis];
  params.size = size;
  params.kind = kind;
  params.align_corners = align_corners;
  return params.length == size ? data : mpg_emit1(g, MPG_OP__resample, &params, data);
}
