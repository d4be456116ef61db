/* Sampling of images (batch, channels, height, width) by interpolation: resizing, adaptive pooling,
 * grids, spatial transformers. Composed of other ops. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/resample.h"
#include "op/vision/sampling.h"

/* --- Positions -------------------------------------------------------------------------------- */
/* Emits 0, 1, ... along one of `ndim` axes; the other axes have size 1. */
static mpg_value count_along(mpg_gradient *g, mpg_value like, int64_t count, int axis, int ndim,
                             mpg_dtype dtype) {
  mpg_shape shape = {.ndim = ndim};
  for (int i = 0; i < ndim; i++) shape.dims[i] = i == axis ? count : 1;
  return mpg_emit_count(g, like, count, dtype, &shape);
}

static mpg_value clipped(mpg_gradient *g, mpg_value a, double low, double high) {
  mpg_clip_params params = {.a_min = low, .a_max = high};
  return mpg_emit1(g, MPG_OP_clip, &params, a);
}

static mpg_value taken(mpg_gradient *g, mpg_value a, mpg_value indices, int axis) {
  mpg_take_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  return mpg_emit2(g, MPG_OP_take, &params, a, indices);
}

/* --- Resizing ------------------------------------------------------------------------------- */
static bool is_batch(mpg_gradient *g, mpg_value value, const char *name) {
  if (g->status != MPG_OK) return false;
  const mpg_shape *shape = &mpg_value_desc(g, value)->shape;
  char text[MPG_SHAPE_TEXT_SIZE];
  bool good = shape->ndim == 4 && shape->dims[2] > 0 && shape->dims[3] > 0;
  if (!good)
    mpg_gradient_fail(g, "%s must be (batch, channels, height, width), not %s", name,
                      mpg_shape_text(shape, text, sizeof text));
  return good;
}

/* Returns the size that BilinearResize2D gives an axis of size `from`, depending on
 * params->mode. */
static int64_t resize_to(const mpg_bilinear_resize_params *params, int64_t from, int64_t size,
                         const mpg_opt_float *scale) {
  enum { SIZE, ODD_SCALE, LIKE, TO_EVEN_DOWN, TO_EVEN_UP, TO_ODD_DOWN, TO_ODD_UP };
  bool odd = from % 2;
  switch (params->mode) {
    case ODD_SCALE:
      return odd ? (int64_t)((double)(from - 1) * scale->value) + 1
                 : (int64_t)((double)from * scale->value);
    case TO_EVEN_DOWN: return from - odd;
    case TO_EVEN_UP: return from + odd;
    case TO_ODD_DOWN: return from - !odd;
    case TO_ODD_UP: return from + !odd;
    default: return scale->present ? (int64_t)((double)from * scale->value) : size;
  }
}

void mpg_compose_bilinear_resize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  enum { SIZE, ODD_SCALE, LIKE };
  const mpg_bilinear_resize_params *params = g->params;
  if (!is_batch(g, inputs[0], "data")) return;
  if ((params->mode == LIKE) != (g->num_inputs == 2)) {
    mpg_gradient_fail(g,
                      "the array `like` requires mode 'like', and mode 'like' requires the array");
    return;
  }
  if (params->mode == ODD_SCALE &&
      (!params->scale_height.present || !params->scale_width.present)) {
    mpg_gradient_fail(g, "mode 'odd_scale' requires scale_height and scale_width");
    return;
  }
  if (params->mode == LIKE && !is_batch(g, inputs[1], "like")) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  int64_t height = resize_to(params, shape.dims[2], params->height, &params->scale_height),
          width = resize_to(params, shape.dims[3], params->width, &params->scale_width);
  if (params->mode == LIKE) {
    height = mpg_value_desc(g, inputs[1])->shape.dims[2];
    width = mpg_value_desc(g, inputs[1])->shape.dims[3];
  }
  if (height < 1 || width < 1) {
    mpg_gradient_fail(g, "the result would have the invalid size %lld x %lld", (long long)height,
                      (long long)width);
    return;
  }
  mpg_value data = mpg_widen(g, inputs[0]);
  if (height == shape.dims[2] && width == shape.dims[3]) {
    outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
    return;
  }
  int64_t sizes[] = {height, width}; /* a result of size 1 takes the first element */
  for (int axis = 3; axis >= 2; axis--)
    data = mpg_emit_resample(g, data, axis, sizes[axis - 2], MPG_RESAMPLE_LINEAR,
                             params->align_corners || sizes[axis - 2] == 1);
  outputs[0] = mpg_emit_cast(g, data, dtype);
}

/* --- Adaptive pooling ------------------------------------------------------------------------- */
/* Emits adaptive average pooling as a (to, from) matrix. Row j averages the elements [floor(j *
 * from / to), ceil((j + 1) * from / to)). */
static mpg_value averages(mpg_gradient *g, mpg_value like, int64_t from, int64_t to,
                          mpg_dtype dtype) {
  mpg_value row = count_along(g, like, to, 0, 2, MPG_FLOAT64),
            element = count_along(g, like, from, 1, 2, MPG_FLOAT64);
  mpg_value begin = mpg_emit1(
      g, MPG_OP_floor, NULL,
      mpg_emit_scalar(g, MPG_OP__div_scalar, mpg_times(g, row, (double)from), (double)to));
  mpg_value end =
      mpg_emit1(g, MPG_OP_ceil, NULL,
                mpg_emit_scalar(g, MPG_OP__div_scalar,
                                mpg_times(g, mpg_plus(g, row, 1), (double)from), (double)to));
  mpg_value inside =
      mpg_multiply(g, mpg_emit2(g, MPG_OP_broadcast_greater_equal, NULL, element, begin),
                   mpg_emit2(g, MPG_OP_broadcast_lesser, NULL, element, end));
  return mpg_emit_cast(g, mpg_divide(g, inside, mpg_subtract(g, end, begin)), dtype);
}

/* Applies adaptive average pooling to the last axis: (..., from) to (..., to). */
static mpg_value averaged(mpg_gradient *g, mpg_value data, int64_t to) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  mpg_dtype dtype = mpg_value_desc(g, data)->dtype;
  int64_t from = shape.dims[shape.ndim - 1];
  mpg_shape rows = {.ndim = 2, .dims = {mpg_shape_product(&shape, 0, shape.ndim - 1), from}};
  mpg_dot_params product;
  memset(&product, 0, sizeof product);
  product.transpose_b = true;
  product.forward_stype = -1;
  mpg_value result = mpg_emit2(g, MPG_OP_dot, &product, mpg_emit_reshape(g, data, &rows),
                               averages(g, data, from, to, dtype));
  shape.dims[shape.ndim - 1] = to;
  return mpg_emit_reshape(g, result, &shape);
}

void mpg_compose_adaptive_pooling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const int64_t swap[] = {0, 1, 3, 2}, blocks[] = {3, 5};
  const mpg_adaptive_pooling_params *params = g->params;
  const mpg_tuple *size = &params->output_size;
  if (!is_batch(g, inputs[0], "data")) return;
  int64_t height = size->count > 0 ? size->values[0] : 1,
          width = size->count > 0 ? size->values[size->count - 1] : 1;
  if (size->count > 2 || height < 1 || width < 1) {
    mpg_gradient_fail(g, "output_size must be the size, or height and width, at least 1");
    return;
  }
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value data = mpg_widen(g, inputs[0]);
  if (shape.dims[2] % height == 0 && shape.dims[3] % width == 0) {
    mpg_shape split = {.ndim = 6,
                       .dims = {shape.dims[0], shape.dims[1], height, shape.dims[2] / height, width,
                                shape.dims[3] / width}};
    data = mpg_emit_mean_over(g, mpg_emit_reshape(g, data, &split), 2, blocks);
  } else {
    data = mpg_emit_transpose(g, averaged(g, data, width), 4, swap);
    data = mpg_emit_transpose(g, averaged(g, data, height), 4, swap);
  }
  outputs[0] = mpg_emit_cast(g, data, dtype);
}

/* --- Sampling --------------------------------------------------------------------------------- */
mpg_value mpg_emit_sampled(mpg_gradient *g, const mpg_pixels *pixels, mpg_value y, mpg_value x) {
  double height = (double)pixels->height, width = (double)pixels->width;
  mpg_value top = mpg_emit1(g, MPG_OP_floor, NULL, y), left = mpg_emit1(g, MPG_OP_floor, NULL, x);
  mpg_value down = mpg_subtract(g, y, top), right = mpg_subtract(g, x, left);
  mpg_value sum = MPG_NO_VALUE;
  for (int corner = 0; corner < 4; corner++) {
    int dy = corner / 2, dx = corner % 2;
    mpg_value row = dy ? mpg_plus(g, top, 1) : top, column = dx ? mpg_plus(g, left, 1) : left;
    mpg_value weight = mpg_multiply(g, dy ? down : mpg_minus_from(g, 1, down),
                                    dx ? right : mpg_minus_from(g, 1, right));
    mpg_value inside[] = {mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, row, 0),
                          mpg_emit_scalar(g, MPG_OP__lesser_scalar, row, height),
                          mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, column, 0),
                          mpg_emit_scalar(g, MPG_OP__lesser_scalar, column, width)};
    for (int i = 0; i < 4 && !pixels->clamped; i++) weight = mpg_multiply(g, weight, inside[i]);
    row = mpg_emit_cast(g, clipped(g, row, 0, height - 1), pixels->index);
    column = mpg_emit_cast(g, clipped(g, column, 0, width - 1), pixels->index);
    mpg_value index = mpg_add(g, mpg_times(g, row, width), column);
    mpg_value value = taken(g, pixels->rows, mpg_add(g, index, pixels->base), 0);
    if (g->status != MPG_OK) return MPG_NO_VALUE;
    mpg_shape each = mpg_value_desc(g, weight)->shape;
    each.dims[each.ndim++] = 1;
    value = mpg_multiply(g, value, mpg_emit_reshape(g, weight, &each));
    sum = corner ? mpg_add(g, sum, value) : value;
  }
  return sum;
}

mpg_pixels mpg_emit_pixels(mpg_gradient *g, mpg_value data, int64_t groups, int ndim) {
  static const int64_t last[] = {0, 1, 3, 4, 2}, plain[] = {0, 2, 3, 1};
  mpg_pixels pixels = {.rows = MPG_NO_VALUE};
  if (g->status != MPG_OK) return pixels;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  int64_t batch = shape.dims[0], channels = shape.dims[1] / groups;
  pixels.height = shape.dims[2];
  pixels.width = shape.dims[3];
  mpg_shape split = {.ndim = 5, .dims = {batch, groups, channels, pixels.height, pixels.width}},
            rows = {.ndim = 2, .dims = {batch * groups * pixels.height * pixels.width, channels}};
  mpg_value moved = groups == 1 ? mpg_emit_transpose(g, data, 4, plain)
                                : mpg_emit_transpose(g, mpg_emit_reshape(g, data, &split), 5, last);
  pixels.rows = mpg_emit_reshape(g, moved, &rows);
  pixels.index = rows.dims[0] > INT32_MAX ? MPG_INT64 : MPG_INT32;
  mpg_shape begins = {.ndim = ndim, .dims = {batch, groups}};
  for (int i = groups == 1 ? 1 : 2; i < ndim; i++) begins.dims[i] = 1;
  pixels.base = mpg_times(g, mpg_emit_count(g, data, batch * groups, pixels.index, &begins),
                          (double)(pixels.height * pixels.width));
  return pixels;
}

/* Samples data (batch, channels, height, width) at the positions in grid (batch, 2, rows, columns).
 * The positions are x, then y; -1 and 1 are the centers of the first and last elements. */
static mpg_value at_grid(mpg_gradient *g, mpg_value data, mpg_value grid) {
  static const int64_t first[] = {0, 3, 1, 2};
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, grid)->shape,
            places = {.ndim = 3, .dims = {shape.dims[0], shape.dims[2], shape.dims[3]}};
  mpg_pixels pixels = mpg_emit_pixels(g, data, 1, 3);
  mpg_value x = mpg_emit_reshape(g, mpg_emit_slice(g, grid, 1, 0, 1), &places),
            y = mpg_emit_reshape(g, mpg_emit_slice(g, grid, 1, 1, 2), &places);
  x = mpg_times(g, mpg_plus(g, x, 1), (double)(pixels.width - 1) / 2);
  y = mpg_times(g, mpg_plus(g, y, 1), (double)(pixels.height - 1) / 2);
  return mpg_emit_transpose(g, mpg_emit_sampled(g, &pixels, y, x), 4, first);
}

static bool is_grid(mpg_gradient *g, mpg_value grid, mpg_value data) {
  if (g->status != MPG_OK) return false;
  const mpg_shape *shape = &mpg_value_desc(g, grid)->shape;
  char text[MPG_SHAPE_TEXT_SIZE];
  int64_t batch = mpg_value_desc(g, data)->shape.dims[0];
  bool good = shape->ndim == 4 && shape->dims[0] == batch && shape->dims[1] == 2;
  if (!good)
    mpg_gradient_fail(g, "grid must be (%lld, 2, height, width), not %s", (long long)batch,
                      mpg_shape_text(shape, text, sizeof text));
  return good;
}

void mpg_compose_bilinear_sampler(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  if (!mpg_same_dtype(g, 0, 1) || !is_batch(g, inputs[0], "data") ||
      !is_grid(g, inputs[1], inputs[0]))
    return;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  outputs[0] =
      mpg_emit_cast(g, at_grid(g, mpg_widen(g, inputs[0]), mpg_widen(g, inputs[1])), dtype);
}

/* --- Grids ------------------------------------------------------------------------------------ */
/* Emits an affine sampling grid (batch, 2, height, width). theta (batch, 6) holds a 2 x 3 matrix
 * per sample, which is multiplied by the vector (x, y, 1) of each position. */
static mpg_value affine_grid(mpg_gradient *g, mpg_value theta, const mpg_tuple *target) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, theta)->shape;
  mpg_dtype dtype = mpg_value_desc(g, theta)->dtype;
  char text[MPG_SHAPE_TEXT_SIZE];
  if (shape.ndim < 2 || mpg_shape_product(&shape, 1, shape.ndim) != 6) {
    mpg_gradient_fail(g, "an affine transformation must be (batch, 6), not %s",
                      mpg_shape_text(&shape, text, sizeof text));
    return MPG_NO_VALUE;
  }
  if (target->count != 2 || target->values[0] < 1 || target->values[1] < 1) {
    mpg_gradient_fail(g, "target_shape must be the height and width of the result");
    return MPG_NO_VALUE;
  }
  int64_t batch = shape.dims[0], height = target->values[0], width = target->values[1];
  mpg_shape result = {.ndim = 4, .dims = {batch, 2, height, width}},
            plane = {.ndim = 2, .dims = {height, width}};
  if (mpg_shape_check(&plane, MPG_FLOAT64, NULL) != MPG_OK ||
      mpg_shape_check(&result, MPG_FLOAT64, NULL) != MPG_OK) {
    mpg_gradient_fail(g, "target_shape is too large");
    return MPG_NO_VALUE;
  }
  mpg_shape line = {.ndim = 2, .dims = {1, height * width}},
            rows = {.ndim = 2, .dims = {2 * batch, 3}};
  mpg_value x = count_along(g, theta, width, 1, 2, dtype),
            y = count_along(g, theta, height, 0, 2, dtype);
  x = mpg_plus(g, mpg_times(g, x, width > 1 ? 2.0 / (double)(width - 1) : 0), -1);
  y = mpg_plus(g, mpg_times(g, y, height > 1 ? 2.0 / (double)(height - 1) : 0), -1);
  mpg_value places[] = {mpg_emit_reshape(g, mpg_emit_broadcast_to(g, x, &plane), &line),
                        mpg_emit_reshape(g, mpg_emit_broadcast_to(g, y, &plane), &line),
                        mpg_emit_full(g, theta, &line, dtype, 1)};
  mpg_dot_params product;
  memset(&product, 0, sizeof product);
  product.forward_stype = -1;
  mpg_value grid = mpg_emit2(g, MPG_OP_dot, &product, mpg_emit_reshape(g, theta, &rows),
                             mpg_emit_concat(g, places, 3, 0));
  return mpg_emit_reshape(g, grid, &result);
}

/* Converts an optical flow (batch, 2, height, width), in elements, to a sampling grid. */
static mpg_value warp_grid(mpg_gradient *g, mpg_value flow) {
  mpg_shape shape = mpg_value_desc(g, flow)->shape;
  mpg_dtype dtype = mpg_value_desc(g, flow)->dtype;
  char text[MPG_SHAPE_TEXT_SIZE];
  if (shape.ndim != 4 || shape.dims[1] != 2) {
    mpg_gradient_fail(g, "a flow must be (batch, 2, height, width), not %s",
                      mpg_shape_text(&shape, text, sizeof text));
    return MPG_NO_VALUE;
  }
  double halves[] = {((double)shape.dims[3] - 1) / 2, ((double)shape.dims[2] - 1) / 2};
  mpg_value parts[2];
  for (int i = 0; i < 2; i++) {
    mpg_value place = count_along(g, flow, shape.dims[3 - i], 3 - i, 4, dtype);
    mpg_value moved = mpg_add(g, mpg_emit_slice(g, flow, 1, i, i + 1), place);
    parts[i] = mpg_plus(g, mpg_emit_scalar(g, MPG_OP__div_scalar, moved, halves[i]), -1);
  }
  return mpg_emit_concat(g, parts, 2, 1);
}

void mpg_compose_grid_generator(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  enum { AFFINE };
  const mpg_grid_generator_params *params = g->params;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value data = mpg_widen(g, inputs[0]);
  if (g->status != MPG_OK) return;
  mpg_value grid = params->transform_type == AFFINE ? affine_grid(g, data, &params->target_shape)
                                                    : warp_grid(g, data);
  outputs[0] = mpg_emit_cast(g, grid, dtype);
}

void mpg_compose_spatial_transformer(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_spatial_transformer_params *params = g->params;
  if (!mpg_same_dtype(g, 0, 1) || !is_batch(g, inputs[0], "data")) return;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value grid = affine_grid(g, mpg_widen(g, inputs[1]), &params->target_shape);
  if (g->status != MPG_OK || !is_grid(g, grid, inputs[0])) return;
  outputs[0] = mpg_emit_cast(g, at_grid(g, mpg_widen(g, inputs[0]), grid), dtype);
}
