/* Pictures (height, width, channels) in another size, with the numbers of OpenCV. Composed of other
 * ops: along each axis, sums of elements times weights. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

static const double PI = 3.14159265358979323846;

enum { NEAREST, LINEAR, CUBIC, AREA, LANCZOS };

static mpg_value clipped(mpg_gradient *g, mpg_value a, double low, double high) {
  mpg_clip_params params = {.a_min = low, .a_max = high};
  return mpg_emit1(g, MPG_OP_clip, &params, a);
}

/* The elements at positions (size) along an axis; beyond the ends those at the ends. */
static mpg_value elements(mpg_gradient *g, mpg_value data, int axis, mpg_value positions) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_take_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  double last = (double)(mpg_value_desc(g, data)->shape.dims[axis] - 1);
  mpg_value index = mpg_emit_cast(g, clipped(g, positions, 0, last), MPG_INT32);
  return mpg_emit2(g, MPG_OP_take, &params, data, index);
}

/* Of a cubic with the slope parameter -0.75, for a distance (size) between 1 and 2, or below 1. */
static mpg_value cubic(mpg_gradient *g, mpg_value x, bool far) {
  const double a = -0.75;
  mpg_value sum = mpg_times(g, x, far ? a : a + 2); /* by Horner's rule */
  sum = mpg_multiply(g, mpg_plus(g, sum, far ? -5 * a : -(a + 3)), x);
  if (far) sum = mpg_plus(g, sum, 8 * a);
  return mpg_plus(g, mpg_multiply(g, sum, x), far ? -4 * a : 1);
}

/* The weights of the elements around positions whose fractions are `part` (size): (size) each. */
static int weights(mpg_gradient *g, mpg_value part, int kind, mpg_value *taps) {
  int count = kind == LANCZOS ? 8 : kind == CUBIC ? 4 : 2;
  mpg_value rest = mpg_minus_from(g, 1, part), sum = MPG_NO_VALUE;
  if (kind == LANCZOS) { /* sin(pi t) sin(pi t / 4) / t^2, whose first factor differs by its sign */
    for (int i = 0; i < count; i++) {
      mpg_value t = mpg_plus(g, part, 3 - i);
      if (i == 3) t = mpg_emit_scalar(g, MPG_OP__maximum_scalar, t, 1e-9);
      mpg_value sine = mpg_emit1(g, MPG_OP_sin, NULL, mpg_times(g, t, PI / 4));
      taps[i] =
          mpg_times(g, mpg_divide(g, sine, mpg_emit1(g, MPG_OP_square, NULL, t)), i % 2 ? -1 : 1);
      sum = i ? mpg_add(g, sum, taps[i]) : taps[i];
    }
    for (int i = 0; i < count; i++) taps[i] = mpg_divide(g, taps[i], sum);
  } else if (kind == CUBIC) {
    taps[0] = cubic(g, mpg_plus(g, part, 1), true);
    taps[1] = cubic(g, part, false);
    taps[2] = cubic(g, rest, false);
    taps[3] = cubic(g, mpg_plus(g, rest, 1), true);
  } else {
    taps[0] = rest;
    taps[1] = part;
  }
  return count;
}

/* 0 to `count` - 1, as a column (0) or a row (1) of float64. */
static mpg_value count_to(mpg_gradient *g, mpg_value like, int64_t count, int axis) {
  mpg_shape shape = {.ndim = 2, .dims = {axis ? 1 : count, axis ? count : 1}};
  return mpg_emit_count(g, like, count, MPG_FLOAT64, &shape);
}

/* Each element is the mean of what it covers of `from` elements. */
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

static mpg_value resized(mpg_gradient *g, mpg_value data, int axis, int64_t size, int kind) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape, along = {.ndim = shape.ndim},
            flat = {.ndim = 1, .dims = {size}};
  mpg_dtype dtype = mpg_value_desc(g, data)->dtype;
  int64_t from = shape.dims[axis];
  if (from == size) return data;
  double scale = (double)from / (double)size;
  mpg_value place = mpg_emit_count(g, data, size, MPG_FLOAT64, &flat), low, part;
  if (kind == NEAREST || kind == AREA) { /* of a picture that grows */
    low = mpg_emit1(g, MPG_OP_floor, NULL, mpg_times(g, place, scale));
    if (kind == NEAREST) return elements(g, data, axis, low);
    part = mpg_subtract(g, mpg_plus(g, place, 1), mpg_times(g, mpg_plus(g, low, 1), 1 / scale));
    part = mpg_emit_scalar(g, MPG_OP__maximum_scalar, part, 0);
    part = mpg_subtract(g, part, mpg_emit1(g, MPG_OP_floor, NULL, part));
  } else {
    place = mpg_plus(g, mpg_times(g, mpg_plus(g, place, 0.5), scale), -0.5);
    low = mpg_emit1(g, MPG_OP_floor, NULL, place);
    part = mpg_subtract(g, place, low);
  }
  mpg_value taps[8], sum = MPG_NO_VALUE;
  int count = weights(g, part, kind, taps);
  for (int i = 0; i < shape.ndim; i++) along.dims[i] = i == axis ? size : 1;
  for (int i = 0; i < count; i++) {
    mpg_value at = elements(g, data, axis, mpg_plus(g, low, i - (count / 2 - 1)));
    mpg_value weight = mpg_emit_reshape(g, mpg_emit_cast(g, taps[i], dtype), &along);
    at = mpg_multiply(g, at, weight);
    sum = i ? mpg_add(g, sum, at) : at;
  }
  return sum;
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
    mpg_gradient_fail(g, "size is the new size, or the new width and height; not below 1");
    return;
  }
  if (params->interp < NEAREST || params->interp > LANCZOS) {
    mpg_gradient_fail(g,
                      "interp must be 0 (nearest), 1 (linear), 2 (cubic), 3 (area) or 4 "
                      "(Lanczos), not %lld",
                      (long long)params->interp);
    return;
  }
  int64_t height = params->size.values[params->size.count - 1], width = params->size.values[0];
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
  if (kind == AREA && height <= shape.dims[axis] && width <= shape.dims[axis + 1]) {
    data = covered(g, covered(g, data, axis + 1, width), axis, height);
  } else {
    data = resized(g, data, axis + 1, width, kind);
    data = resized(g, data, axis, height, kind);
  }
  bool rounds = dtype != MPG_FLOAT64 && dtype != MPG_FLOAT32 && dtype != MPG_FLOAT16 &&
                dtype != MPG_BFLOAT16 && kind != NEAREST;
  if (rounds) data = mpg_emit1(g, MPG_OP_round, NULL, data);
  if (dtype == MPG_UINT8 || dtype == MPG_INT8) /* cubics overshoot */
    data = clipped(g, data, dtype == MPG_INT8 ? -128 : 0, dtype == MPG_INT8 ? 127 : 255);
  outputs[0] = mpg_emit_cast(g, data, dtype);
}
