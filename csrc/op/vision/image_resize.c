/* Resizing of images (height, width, channels) with OpenCV's formulas and rounding. Composed of
 * other ops that compute weighted sums of elements along one axis at a time. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/resample.h"
#include "op/vision/sampling.h"

/* Emits 0, 1, ..., count - 1 in float64, as a column (axis 0) or a row (axis 1). */
static mpg_value count_to(mpg_gradient *g, mpg_value like, int64_t count, int axis) {
  mpg_shape shape = {.ndim = 2, .dims = {axis ? 1 : count, axis ? count : 1}};
  return mpg_emit_count(g, like, count, MPG_FLOAT64, &shape);
}

/* Shrinks an axis by area averaging: each result element is the mean of the input elements that it
 * covers, weighted by the covered part of each. */
static mpg_value covered(mpg_gradient *g, mpg_value data, int axis, int64_t size) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  mpg_dtype dtype = mpg_value_desc(g, data)->dtype;
  int64_t from = shape.dims[axis], outer = mpg_shape_product(&shape, 0, axis),
          inner = mpg_shape_product(&shape, axis + 1, shape.ndim);
  double scale = (double)from / (double)size;
  mpg_value begin = mpg_times(g, count_to(g, data, size, 0), scale), /* (size, 1) */
      element = count_to(g, data, from, 1);                          /* (1, from) */
  mpg_value end = mpg_emit2(g, MPG_OP_broadcast_minimum, NULL, mpg_plus(g, begin, scale),
                            mpg_plus(g, element, 1));
  begin = mpg_emit2(g, MPG_OP_broadcast_maximum, NULL, begin, element);
  mpg_value part = mpg_emit_scalar(g, MPG_OP__maximum_scalar, mpg_subtract(g, end, begin), 0);
  part = mpg_emit_cast(g, mpg_times(g, part, 1 / scale), dtype);
  mpg_shape matrices = {.ndim = 3, .dims = {outer, from, inner}},
            all = {.ndim = 3, .dims = {outer, size, from}};
  mpg_batch_dot_params product;
  memset(&product, 0, sizeof product);
  product.forward_stype = -1;
  mpg_shape one = {.ndim = 3, .dims = {1, size, from}};
  part = mpg_emit_broadcast_to(g, mpg_emit_reshape(g, part, &one), &all);
  mpg_value means =
      mpg_emit2(g, MPG_OP_batch_dot, &product, part, mpg_emit_reshape(g, data, &matrices));
  shape.dims[axis] = size;
  return mpg_emit_reshape(g, means, &shape);
}

void mpg_compose_image_resize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_image_resize_params *params = g->params;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  char text[MPG_SHAPE_TEXT_SIZE];
  int axis = shape.ndim - 3;
  if ((shape.ndim != 3 && shape.ndim != 4) || shape.dims[axis] < 1 || shape.dims[axis + 1] < 1) {
    mpg_gradient_fail(g, "data must be (height, width, channels) or a batch of these, not %s",
                      mpg_shape_text(&shape, text, sizeof text));
    return;
  }
  if (params->size.count < 1 || params->size.count > 2 || params->size.values[0] < 1 ||
      params->size.values[params->size.count - 1] < 1) {
    mpg_gradient_fail(g, "size must be the new size, or the new width and height, at least 1");
    return;
  }
  if (params->interp < MPG_RESAMPLE_NEAREST || params->interp > MPG_RESAMPLE_LANCZOS) {
    mpg_gradient_fail(g,
                      "interp must be 0 (nearest), 1 (linear), 2 (cubic), 3 (area) or 4 "
                      "(Lanczos), not %lld",
                      (long long)params->interp);
    return;
  }
  int64_t height = params->size.values[params->size.count - 1], width = params->size.values[0];
  mpg_shape larger = {.ndim = 2, .dims = {shape.dims[axis], width}},
            wider = {.ndim = 2, .dims = {shape.dims[axis + 1], height}};
  if (mpg_shape_check(&larger, MPG_FLOAT64, NULL) != MPG_OK ||
      mpg_shape_check(&wider, MPG_FLOAT64, NULL) != MPG_OK) {
    mpg_gradient_fail(g, "size is too large");
    return;
  }
  if (params->size.count == 1 && params->keep_ratio) {
    if (shape.dims[axis] > shape.dims[axis + 1])
      height = shape.dims[axis] * width / shape.dims[axis + 1];
    else
      width = shape.dims[axis + 1] * height / shape.dims[axis];
  }
  if (height == shape.dims[axis] && width == shape.dims[axis + 1]) {
    outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
    return;
  }
  int kind = (int)params->interp;
  mpg_value data = mpg_emit_cast(g, inputs[0], dtype == MPG_FLOAT64 ? dtype : MPG_FLOAT32);
  if (kind == MPG_RESAMPLE_AREA && height <= shape.dims[axis] && width <= shape.dims[axis + 1]) {
    data = covered(g, covered(g, data, axis + 1, width), axis, height);
  } else {
    data = mpg_emit_resample(g, data, axis + 1, width, kind, false);
    data = mpg_emit_resample(g, data, axis, height, kind, false);
  }
  bool rounds = dtype != MPG_FLOAT64 && dtype != MPG_FLOAT32 && dtype != MPG_FLOAT16 &&
                dtype != MPG_BFLOAT16 && kind != MPG_RESAMPLE_NEAREST;
  if (rounds) data = mpg_emit1(g, MPG_OP_round, NULL, data);
  bool overshoots = kind == MPG_RESAMPLE_CUBIC || kind == MPG_RESAMPLE_LANCZOS;
  if (overshoots && (dtype == MPG_UINT8 || dtype == MPG_INT8))
    data = mpg_emit1(g, MPG_OP_clip,
                     &(mpg_clip_params){.a_min = dtype == MPG_INT8 ? -128 : 0,
                                        .a_max = dtype == MPG_INT8 ? 127 : 255},
                     data);
  outputs[0] = mpg_emit_cast(g, data, dtype);
}
