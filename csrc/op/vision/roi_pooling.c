/* Max pooling of regions of interest (Girshick, Fast R-CNN, 2015). One op finds the positions of
 * the largest elements; other ops gather these elements and scatter the gradient. Also contains the
 * inference of RROIAlign, which has its own kernel because its regions are rotated. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/regions.h"

/* Infers a result (regions, channels, bins[0], bins[1]) from data (batch, channels, height, width)
 * and rois (regions, numbers). */
static mpg_status pooled(mpg_infer *infer, const mpg_tuple *bins, int numbers, mpg_dtype dtype) {
  const mpg_shape *data = &infer->inputs[0].shape, *rois = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  if (bins->count != 2 || bins->values[0] < 1 || bins->values[1] < 1)
    return mpg_infer_fail(infer, "pooled_size must be a height and a width, at least 1");
  if (!mpg_shape_known(data) || !mpg_shape_known(rois)) return MPG_OK;
  if (data->ndim != 4 || data->dims[2] < 1 || data->dims[3] < 1)
    return mpg_infer_fail(infer, "data must be (batch, channels, height, width)");
  if (rois->ndim != 2 || rois->dims[1] != numbers)
    return mpg_infer_fail(infer, "rois must be (regions, %d)", numbers);
  mpg_shape result = {.ndim = 4,
                      .dims = {rois->dims[0], data->dims[1], bins->values[0], bins->values[1]}};
  mpg_infer_set(infer, 0, &result, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_roi_max_places(mpg_infer *infer) {
  const mpg_roi_pooling_params *params = infer->params;
  return pooled(infer, &params->pooled_size, 5, MPG_INT64);
}

mpg_status mpg_infer_rroi_align(mpg_infer *infer) {
  const mpg_rroi_align_params *params = infer->params;
  return pooled(infer, &params->pooled_size, 6, infer->inputs[0].dtype);
}

void mpg_compose_roi_pooling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  if (!mpg_is_regions(g, inputs, 5)) return;
  const mpg_tuple *bins = &((const mpg_roi_pooling_params *)g->params)->pooled_size;
  if (bins->count != 2 || bins->values[0] < 1 || bins->values[1] < 1) {
    mpg_gradient_fail(g, "pooled_size must be a height and a width, at least 1");
    return;
  }
  mpg_shape flat = {.ndim = 1, .dims = {mpg_shape_size(&mpg_value_desc(g, inputs[0])->shape)}};
  mpg_value places = mpg_emit2(g, MPG_OP__roi_max_places, g->params, inputs[0], inputs[1]);
  mpg_take_params params;
  memset(&params, 0, sizeof params);
  mpg_value largest =
      mpg_emit2(g, MPG_OP_take, &params, mpg_emit_reshape(g, inputs[0], &flat), places);
  if (g->status != MPG_OK) return;
  outputs[0] = mpg_emit_where(g, mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, places, 0),
                              largest, mpg_emit_full_like(g, largest, 0));
}
