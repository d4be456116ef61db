/* Helpers for ops on regions of interest. */
#include "op/vision/regions.h"

#include "op/formula/arithmetic.h"

bool mpg_is_regions(mpg_gradient *g, const mpg_value *inputs, int numbers) {
  char text[MPG_SHAPE_TEXT_SIZE];
  if (!mpg_same_dtype(g, 0, 1)) return false;
  const mpg_shape *data = &mpg_value_desc(g, inputs[0])->shape,
                  *rois = &mpg_value_desc(g, inputs[1])->shape;
  if (data->ndim != 4 || data->dims[2] < 1 || data->dims[3] < 1)
    mpg_gradient_fail(g, "data must be (batch, channels, height, width), not %s",
                      mpg_shape_text(data, text, sizeof text));
  else if (rois->ndim != 2 || rois->dims[1] != numbers)
    mpg_gradient_fail(g, "rois must be (regions, [image, xmin, ymin, xmax, ymax]), not %s",
                      mpg_shape_text(rois, text, sizeof text));
  return g->status == MPG_OK;
}

mpg_value mpg_emit_roi_number(mpg_gradient *g, mpg_value rois, int column, int ndim) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = {.ndim = ndim, .dims = {mpg_value_desc(g, rois)->shape.dims[0]}};
  for (int i = 1; i < ndim; i++) shape.dims[i] = 1;
  return mpg_emit_reshape(g, mpg_emit_slice(g, rois, 1, column, column + 1), &shape);
}

mpg_value mpg_emit_roi_image(mpg_gradient *g, mpg_value rois, int ndim) {
  return mpg_emit_cast(g, mpg_emit_roi_number(g, rois, 0, ndim), MPG_INT32);
}

mpg_value mpg_emit_roi_there(mpg_gradient *g, mpg_value rois, int64_t pictures, int ndim) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_value picture = mpg_emit_roi_image(g, rois, ndim);
  return mpg_emit_cast(g, mpg_emit_within(g, picture, 0, (double)(pictures - 1)),
                       mpg_value_desc(g, rois)->dtype);
}

mpg_value mpg_emit_within(mpg_gradient *g, mpg_value a, double low, double high) {
  return mpg_multiply(g, mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, a, low),
                      mpg_emit_scalar(g, MPG_OP__lesser_equal_scalar, a, high));
}
