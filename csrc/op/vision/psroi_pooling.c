/* Position-sensitive pooling of regions of interest, in which each bin reads its own channels (Dai
 * et al., R-FCN, 2016), and a deformable variant, in which an array of offsets moves the bins (Dai
 * et al., 2017). Composed of other ops. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/regions.h"
#include "op/vision/sampling.h"

/* Computes the start and the size of the regions along height (axis 0) or width (axis 1), as arrays
 * (regions, 1, ...). */
static void extent_of(mpg_gradient *g, mpg_value rois, int axis, double scale, double shift,
                      int ndim, mpg_value *begin, mpg_value *size) {
  mpg_value first = mpg_emit1(g, MPG_OP_round, NULL, mpg_emit_roi_number(g, rois, 2 - axis, ndim)),
            last = mpg_emit1(g, MPG_OP_round, NULL, mpg_emit_roi_number(g, rois, 4 - axis, ndim));
  scale = (double)(float)scale; /* float32 as in MXNet, so that bin corners round the same way */
  *begin = mpg_plus(g, mpg_times(g, first, scale), shift);
  mpg_value end = mpg_plus(g, mpg_times(g, mpg_plus(g, last, 1), scale), shift);
  *size = mpg_emit_scalar(g, MPG_OP__maximum_scalar, mpg_subtract(g, end, *begin), 0.1);
}

/* Emits the part that each bin belongs to, floor(bin * parts / bins), along one of `ndim` axes. */
static mpg_value part_of_bin(mpg_gradient *g, mpg_value like, int64_t bins, int64_t parts, int axis,
                             int ndim, mpg_dtype dtype) {
  mpg_shape shape = {.ndim = ndim};
  for (int i = 0; i < ndim; i++) shape.dims[i] = i == axis ? bins : 1;
  mpg_value bin = mpg_emit_count(g, like, bins, MPG_FLOAT64, &shape);
  bin = mpg_emit_scalar(g, MPG_OP__div_scalar, mpg_times(g, bin, (double)parts), (double)bins);
  return mpg_emit_cast(g, mpg_emit1(g, MPG_OP_floor, NULL, bin), dtype);
}

static mpg_value taken(mpg_gradient *g, mpg_value a, mpg_value indices, int axis) {
  mpg_take_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  return mpg_emit2(g, MPG_OP_take, &params, a, indices);
}

static mpg_value clipped(mpg_gradient *g, mpg_value a, double low, double high) {
  mpg_clip_params params = {.a_min = low, .a_max = high};
  return mpg_emit1(g, MPG_OP_clip, &params, a);
}

static bool has_channels(mpg_gradient *g, const mpg_value *inputs, int64_t output_dim,
                         int64_t groups) {
  if (!mpg_is_regions(g, inputs, 5)) return false;
  int64_t channels = mpg_value_desc(g, inputs[0])->shape.dims[1], wanted;
  bool good = !__builtin_mul_overflow(groups, groups, &wanted) &&
              !__builtin_mul_overflow(wanted, output_dim, &wanted) && channels == wanted;
  if (!good)
    mpg_gradient_fail(g, "data must have output_dim * group_size * group_size channels, not %lld",
                      (long long)channels);
  return good;
}

/* --- Bins of whole elements ------------------------------------------------------------------- */
/* Emits the integral image (batch, channels, height + 1, width + 1). Each of its elements is the
 * sum of all data elements above it and to its left, so the sum over a rectangle follows from four
 * elements. The sums are float64, so that enough digits remain after cancellation. */
static mpg_value corner_sums(mpg_gradient *g, mpg_value data) {
  data = mpg_emit_cast(g, data, MPG_FLOAT64);
  for (int axis = 2; axis < 4 && g->status == MPG_OK; axis++) {
    mpg_shape edge = mpg_value_desc(g, data)->shape;
    edge.dims[axis] = 1;
    mpg_value parts[] = {mpg_emit_full(g, data, &edge, MPG_FLOAT64, 0), data};
    mpg_cumsum_params along;
    memset(&along, 0, sizeof along);
    along.axis = (mpg_opt_int){.value = axis, .present = 1};
    along.dtype = MPG_FLOAT64;
    data = mpg_emit1(g, MPG_OP__np_cumsum, &along, mpg_emit_concat(g, parts, 2, axis));
  }
  return data;
}

void mpg_compose_psroi_pooling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const int64_t channels_last[] = {0, 2, 3, 4, 5, 1}, channels_second[] = {0, 3, 1, 2};
  const mpg_psroi_pooling_params *params = g->params;
  int64_t bins = params->pooled_size, groups = params->group_size ? params->group_size : bins;
  if (!has_channels(g, inputs, params->output_dim, groups)) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype, index = MPG_INT64;
  mpg_value rois = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_widen(g, inputs[1]));
  mpg_value low[2], high[2]; /* (regions, bins, 1) and (regions, 1, bins) */
  for (int i = 0; i < 2; i++) {
    mpg_value begin, size;
    mpg_shape along = {.ndim = 3, .dims = {1, i ? 1 : bins, i ? bins : 1}};
    extent_of(g, rois, i, params->spatial_scale, 0, 3, &begin, &size);
    if (g->status != MPG_OK) return;
    mpg_value bin = mpg_emit_count(g, rois, bins, mpg_value_desc(g, rois)->dtype, &along);
    size = mpg_emit_scalar(g, MPG_OP__div_scalar, size, (double)bins);
    double most = (double)shape.dims[2 + i];
    low[i] = mpg_add(g, mpg_multiply(g, bin, size), begin);
    high[i] = mpg_add(g, mpg_multiply(g, mpg_plus(g, bin, 1), size), begin);
    low[i] = clipped(g, mpg_emit1(g, MPG_OP_floor, NULL, low[i]), 0, most);
    high[i] = clipped(g, mpg_emit1(g, MPG_OP_ceil, NULL, high[i]), 0, most);
  }
  /* Reshapes the integral image to rows in the order (image, vertical group, horizontal group, y,
   * x). A row has one number per channel. */
  mpg_shape split = {.ndim = 6,
                     .dims = {shape.dims[0], params->output_dim, groups, groups, shape.dims[2] + 1,
                              shape.dims[3] + 1}},
            rows = {.ndim = 2,
                    .dims = {shape.dims[0] * groups * groups * split.dims[4] * split.dims[5],
                             params->output_dim}};
  mpg_value sums = mpg_emit_reshape(g, corner_sums(g, inputs[0]), &split);
  sums = mpg_emit_reshape(g, mpg_emit_transpose(g, sums, 6, channels_last), &rows);
  mpg_value plane = mpg_emit_cast(g, mpg_emit_roi_image(g, rois, 3), index);
  plane = mpg_add(g, mpg_times(g, plane, (double)groups),
                  part_of_bin(g, rois, bins, groups, 1, 3, index));
  plane = mpg_add(g, mpg_times(g, plane, (double)groups),
                  part_of_bin(g, rois, bins, groups, 2, 3, index));
  mpg_value sum = MPG_NO_VALUE;
  for (int corner = 0; corner < 4; corner++) {
    mpg_value y = mpg_emit_cast(g, corner / 2 ? high[0] : low[0], index),
              x = mpg_emit_cast(g, corner % 2 ? high[1] : low[1], index);
    mpg_value row = mpg_add(g, mpg_times(g, plane, (double)split.dims[4]), y);
    row = mpg_add(g, mpg_times(g, row, (double)split.dims[5]), x);
    mpg_value at = taken(g, sums, row, 0);
    sum = !corner                        ? at
          : (corner == 1 || corner == 2) ? mpg_subtract(g, sum, at)
                                         : mpg_add(g, sum, at);
  }
  mpg_value area =
      mpg_multiply(g, mpg_subtract(g, high[0], low[0]), mpg_subtract(g, high[1], low[1]));
  mpg_value factor = mpg_divide(g, mpg_emit_roi_there(g, rois, shape.dims[0], 3),
                                mpg_emit_scalar(g, MPG_OP__maximum_scalar, area, 1));
  if (g->status != MPG_OK) return;
  mpg_shape each = mpg_value_desc(g, factor)->shape;
  each.dims[each.ndim++] = 1;
  mpg_value means =
      mpg_multiply(g, sum, mpg_emit_reshape(g, mpg_emit_cast(g, factor, MPG_FLOAT64), &each));
  outputs[0] = mpg_emit_cast(g, mpg_emit_transpose(g, means, 4, channels_second), dtype);
}

/* --- Bins moved by offsets -------------------------------------------------------------------- */
int mpg_arity_deformable_psroi(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return ((const mpg_deformable_psroi_params *)params)->no_trans ? 2 : 3;
}

/* Emits the offsets of bins along height (axis 1) or width (axis 0), as fractions of the region's
 * size: (regions, classes, bins, bins). */
static mpg_value movement(mpg_gradient *g, mpg_value trans, int64_t classes, int64_t bins,
                          int axis) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, trans)->shape;
  int64_t parts = shape.dims[2];
  mpg_shape split = {.ndim = 5, .dims = {shape.dims[0], classes, 2, parts, parts}},
            each = {.ndim = 4, .dims = {shape.dims[0], classes, parts, parts}};
  mpg_value one = mpg_emit_slice(g, mpg_emit_reshape(g, trans, &split), 2, axis, axis + 1);
  one = mpg_emit_reshape(g, one, &each);
  mpg_value part = part_of_bin(g, trans, bins, parts, 0, 1, MPG_INT32);
  return taken(g, taken(g, one, part, 2), part, 3);
}

void mpg_compose_deformable_psroi(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const int64_t channels_last[] = {0, 3, 4, 1, 5, 6, 2}, samples[] = {4, 5},
                       channels_third[] = {0, 1, 4, 2, 3};
  const mpg_deformable_psroi_params *params = g->params;
  int64_t bins = params->pooled_size, groups = params->group_size,
          parts = params->part_size ? params->part_size : bins, count = params->sample_per_part,
          classes = 1;
  if (!has_channels(g, inputs, params->output_dim, groups)) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  int64_t regions = mpg_value_desc(g, inputs[1])->shape.dims[0];
  if (!params->no_trans) {
    if (!mpg_same_dtype(g, 0, 2)) return;
    mpg_shape trans = mpg_value_desc(g, inputs[2])->shape;
    classes = trans.ndim == 4 ? trans.dims[1] / 2 : 0;
    if (classes < 1 || trans.dims[0] != regions || trans.dims[1] % 2 || trans.dims[2] != parts ||
        trans.dims[3] != parts || params->output_dim % classes) {
      mpg_gradient_fail(g,
                        "trans must be (regions, 2 * classes, part_size, part_size), and "
                        "output_dim a multiple of the classes");
      return;
    }
  }
  mpg_value rois = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_widen(g, inputs[1])),
            data = mpg_widen(g, inputs[0]);
  if (g->status != MPG_OK) return;
  mpg_dtype wide = mpg_value_desc(g, rois)->dtype;
  /* Positions of samples: (regions, classes, bins, bins, samples, samples). */
  mpg_value place[2], counted = MPG_NO_VALUE;
  mpg_shape all = {.ndim = 6, .dims = {regions, classes, bins, bins, count, count}};
  for (int i = 0; i < 2; i++) {
    mpg_value begin, size;
    mpg_shape along = {.ndim = 6, .dims = {1, 1, i ? 1 : bins, i ? bins : 1, 1, 1}},
              within = {.ndim = 6, .dims = {1, 1, 1, 1, i ? 1 : count, i ? count : 1}},
              moved = {.ndim = 6, .dims = {regions, classes, bins, bins, 1, 1}};
    extent_of(g, rois, i, params->spatial_scale, -0.5, 6, &begin, &size);
    mpg_value bin = mpg_emit_scalar(g, MPG_OP__div_scalar, size, (double)bins);
    place[i] = mpg_add(g, begin, mpg_multiply(g, bin, mpg_emit_count(g, rois, bins, wide, &along)));
    if (!params->no_trans) {
      mpg_value by = mpg_times(g, movement(g, mpg_widen(g, inputs[2]), classes, bins, 1 - i),
                               params->trans_std);
      place[i] = mpg_add(g, place[i], mpg_multiply(g, mpg_emit_reshape(g, by, &moved), size));
    }
    mpg_value step = mpg_emit_scalar(g, MPG_OP__div_scalar, bin, (double)count);
    place[i] =
        mpg_add(g, place[i], mpg_multiply(g, step, mpg_emit_count(g, rois, count, wide, &within)));
    double size_of_data = (double)shape.dims[2 + i];
    mpg_value inside = mpg_emit_within(g, place[i], -0.5, size_of_data - 0.5);
    counted = i ? mpg_multiply(g, counted, inside) : inside;
    place[i] = mpg_emit_broadcast_to(g, clipped(g, place[i], 0, size_of_data - 1), &all);
  }
  counted = mpg_multiply(g, counted, mpg_emit_roi_there(g, rois, shape.dims[0], 6));
  counted = mpg_emit_broadcast_to(g, counted, &all);
  /* Reshapes the data to rows in the order (image, vertical group, horizontal group, class, y, x).
   * A row has one number per channel of a class. */
  int64_t channels = params->output_dim / classes;
  mpg_shape split = {.ndim = 7,
                     .dims = {shape.dims[0], classes, channels, groups, groups, shape.dims[2],
                              shape.dims[3]}},
            rows = {.ndim = 2,
                    .dims = {mpg_shape_size(&shape) / (channels ? channels : 1), channels}},
            class = {.ndim = 6, .dims = {1, classes, 1, 1, 1, 1}};
  mpg_pixels pixels = {.index = rows.dims[0] > INT32_MAX ? MPG_INT64 : MPG_INT32,
                       .height = shape.dims[2],
                       .width = shape.dims[3],
                       .clamped = true};
  pixels.rows = mpg_emit_reshape(
      g, mpg_emit_transpose(g, mpg_emit_reshape(g, data, &split), 7, channels_last), &rows);
  mpg_value base = mpg_emit_cast(g, mpg_emit_roi_image(g, rois, 6), pixels.index);
  for (int i = 0; i < 2; i++)
    base = mpg_add(g, mpg_times(g, base, (double)groups),
                   part_of_bin(g, rois, bins, groups, 2 + i, 6, pixels.index));
  base = mpg_add(g, mpg_times(g, base, (double)classes),
                 mpg_emit_count(g, rois, classes, pixels.index, &class));
  pixels.base = mpg_times(g, base, (double)(shape.dims[2] * shape.dims[3]));
  mpg_value values = mpg_emit_sampled(g, &pixels, place[0], place[1]);
  mpg_shape weights = all, totals = {.ndim = 5, .dims = {regions, classes, bins, bins, 1}},
            result = {.ndim = 4, .dims = {regions, params->output_dim, bins, bins}};
  weights.dims[weights.ndim++] = 1;
  mpg_value means = mpg_emit_mean_over(
      g, mpg_multiply(g, values, mpg_emit_reshape(g, counted, &weights)), 2, samples);
  mpg_value part =
      mpg_emit_scalar(g, MPG_OP__maximum_scalar, mpg_emit_mean_over(g, counted, 2, samples), 1e-6);
  means = mpg_divide(g, means, mpg_emit_reshape(g, part, &totals));
  means = mpg_emit_reshape(g, mpg_emit_transpose(g, means, 5, channels_third), &result);
  outputs[0] = mpg_emit_cast(g, means, dtype);
}
