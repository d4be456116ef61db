/* ROIAlign: averages interpolated samples of regions of interest (He et al., Mask R-CNN, 2017).
 * Composed of other ops. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/regions.h"
#include "op/vision/sampling.h"

/* Largest sample_ratio for which sampled() is used. With more samples per bin, matrix products
 * (weighted()) are faster. */
enum { MOST_SAMPLES = 4 };

/* Extents of regions along height or width, in elements. Each array is (regions, 1, 1). */
typedef struct extent {
  mpg_value begin, size;
  int64_t bins, elements; /* sizes of the result and of the data along this axis */
} extent;

static mpg_value clipped(mpg_gradient *g, mpg_value a, double low, double high) {
  mpg_clip_params params = {.a_min = low, .a_max = high};
  return mpg_emit1(g, MPG_OP_clip, &params, a);
}

/* --- Few samples per bin ---------------------------------------------------------------------- */
/* Emits the position of one sample of each bin along height or width: (regions, bins, 1) or
 * (regions, 1, bins). */
static mpg_value sample_along(mpg_gradient *g, const extent *e, int64_t sample, int64_t samples,
                              bool across) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = {.ndim = 3, .dims = {1, across ? 1 : e->bins, across ? e->bins : 1}};
  mpg_value place =
      mpg_emit_count(g, e->begin, e->bins, mpg_value_desc(g, e->begin)->dtype, &shape);
  place = mpg_times(g, mpg_plus(g, place, ((double)sample + 0.5) / (double)samples),
                    1 / (double)e->bins);
  return mpg_add(g, e->begin, mpg_multiply(g, e->size, place));
}

/* Emits the mean of each bin's samples: (regions, channels, bins, bins). Adds the samples one at a
 * time, so that memory does not grow with their number. */
static mpg_value sampled(mpg_gradient *g, mpg_value data, mpg_value rois, const extent *high,
                         const extent *wide, int64_t samples) {
  static const int64_t channels_second[] = {0, 3, 1, 2};
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  int64_t regions = mpg_value_desc(g, rois)->shape.dims[0];
  mpg_shape all = {.ndim = 3, .dims = {regions, high->bins, wide->bins}},
            weights = {.ndim = 4, .dims = {regions, high->bins, wide->bins, 1}};
  mpg_pixels pixels = mpg_emit_pixels(g, data, 1, 3);
  pixels.base = mpg_times(g, mpg_emit_cast(g, mpg_emit_roi_image(g, rois, 3), pixels.index),
                          (double)(high->elements * wide->elements));
  pixels.clamped = true;
  mpg_value there = mpg_emit_roi_there(g, rois, mpg_value_desc(g, data)->shape.dims[0], 3),
            sum = MPG_NO_VALUE;
  for (int64_t i = 0; i < samples * samples && g->status == MPG_OK; i++) {
    mpg_value y = sample_along(g, high, i / samples, samples, false),
              x = sample_along(g, wide, i % samples, samples, true);
    /* A sample counts only if its region's image index is in the batch and the sample is at most
     * one element outside the image. */
    mpg_value counted = mpg_multiply(g, mpg_emit_within(g, y, -1, (double)high->elements),
                                     mpg_emit_within(g, x, -1, (double)wide->elements));
    counted = mpg_emit_reshape(g, mpg_multiply(g, counted, there), &weights);
    y = mpg_emit_broadcast_to(g, clipped(g, y, 0, (double)(high->elements - 1)), &all);
    x = mpg_emit_broadcast_to(g, clipped(g, x, 0, (double)(wide->elements - 1)), &all);
    mpg_value value = mpg_multiply(g, mpg_emit_sampled(g, &pixels, y, x), counted);
    sum = i ? mpg_add(g, sum, value) : value;
  }
  mpg_value means = mpg_times(g, sum, 1 / (double)(samples * samples));
  return mpg_emit_transpose(g, means, 4, channels_second);
}

/* --- Any number of samples per bin ------------------------------------------------------------ */
/* The samples of a bin form a grid, and their weights are separable: products of a weight along
 * height and a weight along width. The means are therefore two matrix products, for any number of
 * samples. */

/* Emits the weight of each element in each bin: (regions, bins, elements). The weight is the mean
 * of max(0, 1 - distance from the element) over the samples of the bin, which are `step` apart.
 *
 * Between two elements, 1 - distance is linear in the sample's position. The weight therefore
 * follows from the number of samples between the elements and the sum of their positions. Samples
 * up to one element outside the image count for the element at the edge; samples farther outside do
 * not count. */
static mpg_value weights_along(mpg_gradient *g, const extent *e, int64_t ratio, mpg_dtype dtype) {
  int64_t n = e->elements;
  mpg_shape bins = {.ndim = 3, .dims = {1, e->bins, 1}}, edges = {.ndim = 3, .dims = {1, 1, n + 2}},
            between = {.ndim = 3, .dims = {1, 1, n + 1}};
  mpg_value count = MPG_NO_VALUE, length = mpg_times(g, e->size, 1 / (double)e->bins);
  if (ratio < 1)
    count = mpg_emit_scalar(g, MPG_OP__maximum_scalar, mpg_emit1(g, MPG_OP_ceil, NULL, length), 1);
  else
    count = mpg_plus(g, mpg_times(g, length, 0), (double)ratio);
  count = mpg_emit_cast(g, count, MPG_FLOAT64);
  length = mpg_emit_scalar(g, MPG_OP__maximum_scalar, mpg_emit_cast(g, length, MPG_FLOAT64), 1e-9);
  mpg_value step = mpg_divide(g, length, count);
  mpg_value begin =
      mpg_add(g, mpg_emit_cast(g, e->begin, MPG_FLOAT64),
              mpg_multiply(g, length, mpg_emit_count(g, length, e->bins, MPG_FLOAT64, &bins)));
  /* Samples are at begin + (i + 0.5) * step for i < count. For each edge -1, 0, ... n, `below` is
   * the number of samples below the edge, and `sums` is the sum of their positions. The last edge
   * is increased by 1e-9, so that a sample exactly on it counts. */
  mpg_value edge = mpg_plus(g, mpg_emit_count(g, length, n + 2, MPG_FLOAT64, &edges), -1);
  edge = mpg_add(g, edge,
                 mpg_times(g, mpg_emit_scalar(g, MPG_OP__equal_scalar, edge, (double)n), 1e-9));
  mpg_value below = mpg_emit1(g, MPG_OP_ceil, NULL,
                              mpg_plus(g, mpg_divide(g, mpg_subtract(g, edge, begin), step), -0.5));
  below = mpg_emit2(g, MPG_OP_broadcast_minimum, NULL,
                    mpg_emit_scalar(g, MPG_OP__maximum_scalar, below, 0), count);
  mpg_value sums =
      mpg_add(g, mpg_multiply(g, below, begin),
              mpg_multiply(g, mpg_times(g, mpg_emit1(g, MPG_OP_square, NULL, below), 0.5), step));
  /* Number of samples between the edges i - 1 and i, and the sum of their positions. */
  mpg_value samples = mpg_subtract(g, mpg_emit_slice(g, below, 2, 1, n + 2),
                                   mpg_emit_slice(g, below, 2, 0, n + 1)),
            places = mpg_subtract(g, mpg_emit_slice(g, sums, 2, 1, n + 2),
                                  mpg_emit_slice(g, sums, 2, 0, n + 1)),
            index = mpg_emit_count(g, length, n + 1, MPG_FLOAT64, &between);
  mpg_value first = mpg_emit_scalar(g, MPG_OP__equal_scalar, index, 0),
            inside = mpg_minus_from(
                g, 1,
                mpg_add(g, first, mpg_emit_scalar(g, MPG_OP__equal_scalar, index, (double)n)));
  mpg_value upper = mpg_multiply(
      g, mpg_subtract(g, places, mpg_multiply(g, mpg_plus(g, index, -1), samples)), inside);
  upper = mpg_add(g, upper, mpg_multiply(g, samples, first));
  mpg_value lower = mpg_subtract(g, samples, upper);
  mpg_value weights =
      mpg_add(g, mpg_emit_slice(g, upper, 2, 0, n), mpg_emit_slice(g, lower, 2, 1, n + 1));
  return mpg_emit_cast(g, mpg_divide(g, weights, count), dtype);
}

static mpg_value batch_product(mpg_gradient *g, mpg_value a, mpg_value b, bool transpose_b) {
  mpg_batch_dot_params params;
  memset(&params, 0, sizeof params);
  params.transpose_b = transpose_b;
  params.forward_stype = -1;
  return mpg_emit2(g, MPG_OP_batch_dot, &params, a, b);
}

/* Multiplies the data by the row weights (regions, bins, all rows of all images) and the column
 * weights (regions, bins, columns). The weighted sums are (regions, channels, bins, bins). */
static mpg_value weighted(mpg_gradient *g, mpg_value data, mpg_value rows, mpg_value columns) {
  static const int64_t rows_first[] = {0, 2, 1, 3}, channels_second[] = {0, 2, 1, 3};
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape, of_rows = mpg_value_desc(g, rows)->shape;
  int64_t regions = of_rows.dims[0], high = of_rows.dims[1], channels = shape.dims[1],
          wide = mpg_value_desc(g, columns)->shape.dims[1];
  mpg_shape matrix = {.ndim = 2, .dims = {of_rows.dims[2], channels * shape.dims[3]}},
            all = {.ndim = 2, .dims = {regions * high, of_rows.dims[2]}},
            bands = {.ndim = 3, .dims = {regions, high * channels, shape.dims[3]}},
            bins = {.ndim = 4, .dims = {regions, high, channels, wide}};
  mpg_dot_params product;
  memset(&product, 0, sizeof product);
  product.forward_stype = -1;
  mpg_value sums =
      mpg_emit2(g, MPG_OP_dot, &product, mpg_emit_reshape(g, rows, &all),
                mpg_emit_reshape(g, mpg_emit_transpose(g, data, 4, rows_first), &matrix));
  sums = batch_product(g, mpg_emit_reshape(g, sums, &bands), columns, true);
  return mpg_emit_transpose(g, mpg_emit_reshape(g, sums, &bins), 4, channels_second);
}

/* Like weighted(), but each bin has its own channels. */
static mpg_value weighted_by_bin(mpg_gradient *g, mpg_value data, mpg_value rows,
                                 mpg_value columns) {
  static const int64_t rows_of_bins_first[] = {2, 0, 4, 1, 3, 5}, bins_first[] = {1, 0, 2},
                       regions_first[] = {1, 2, 0, 3};
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape, of_rows = mpg_value_desc(g, rows)->shape;
  int64_t regions = of_rows.dims[0], high = of_rows.dims[1],
          wide = mpg_value_desc(g, columns)->shape.dims[1],
          channels = shape.dims[1] / (high * wide);
  mpg_shape split = {.ndim = 6,
                     .dims = {shape.dims[0], channels, high, wide, shape.dims[2], shape.dims[3]}},
            matrices = {.ndim = 3,
                        .dims = {high, of_rows.dims[2], channels * wide * shape.dims[3]}},
            bands = {.ndim = 5, .dims = {high, regions, channels, wide, shape.dims[3]}},
            factors = {.ndim = 5, .dims = {1, regions, 1, wide, shape.dims[3]}},
            bins = {.ndim = 4, .dims = {high, regions, channels, wide}};
  mpg_value moved = mpg_emit_transpose(g, mpg_emit_reshape(g, data, &split), 6, rows_of_bins_first);
  mpg_value sums = batch_product(g, mpg_emit_transpose(g, rows, 3, bins_first),
                                 mpg_emit_reshape(g, moved, &matrices), false);
  sums = mpg_multiply(g, mpg_emit_reshape(g, sums, &bands), mpg_emit_reshape(g, columns, &factors));
  sums = mpg_emit_reshape(g, mpg_emit_reduce(g, MPG_OP_sum, sums, 4), &bins);
  return mpg_emit_transpose(g, sums, 4, regions_first);
}

/* Expands row weights from one image to all rows of all images, with weight 0 in all other
 * images. */
static mpg_value of_image(mpg_gradient *g, mpg_value rows, mpg_value picture, int64_t pictures) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  const mpg_shape *shape = &mpg_value_desc(g, rows)->shape;
  mpg_shape which = {.ndim = 4, .dims = {1, 1, pictures, 1}},
            chosen = {.ndim = 4, .dims = {shape->dims[0], 1, 1, 1}},
            split = {.ndim = 4, .dims = {shape->dims[0], shape->dims[1], 1, shape->dims[2]}},
            joined = {.ndim = 3,
                      .dims = {shape->dims[0], shape->dims[1], pictures * shape->dims[2]}};
  mpg_value own = mpg_emit2(g, MPG_OP_broadcast_equal, NULL, mpg_emit_reshape(g, picture, &chosen),
                            mpg_emit_count(g, rows, pictures, MPG_INT32, &which));
  own = mpg_emit_cast(g, own, mpg_value_desc(g, rows)->dtype);
  return mpg_emit_reshape(g, mpg_multiply(g, own, mpg_emit_reshape(g, rows, &split)), &joined);
}

/* --- ROIAlign --------------------------------------------------------------------------------- */
static bool fits(mpg_gradient *g, const mpg_value *inputs) {
  const mpg_roi_align_params *params = g->params;
  const mpg_tuple *bins = &params->pooled_size;
  if (!mpg_is_regions(g, inputs, 5)) return false;
  const mpg_shape *data = &mpg_value_desc(g, inputs[0])->shape;
  if (bins->count != 2 || bins->values[0] < 1 || bins->values[1] < 1)
    mpg_gradient_fail(g, "pooled_size must be a height and a width, at least 1");
  else if (mpg_shape_check(&(mpg_shape){.ndim = 2, .dims = {bins->values[0], bins->values[1]}},
                           MPG_FLOAT64, NULL) != MPG_OK)
    mpg_gradient_fail(g, "pooled_size is too large");
  else if (params->position_sensitive && data->dims[1] % (bins->values[0] * bins->values[1]))
    mpg_gradient_fail(
        g, "channels must be a multiple of the number of bins if position_sensitive is set");
  return g->status == MPG_OK;
}

void mpg_compose_roi_align(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_roi_align_params *params = g->params;
  if (!fits(g, inputs)) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value region = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_widen(g, inputs[1])),
            data = mpg_widen(g, inputs[0]), low[2], high[2];
  extent extents[2]; /* along height, along width */
  for (int i = 0; i < 2; i++) {
    double scale = params->spatial_scale, shift = params->aligned ? -0.5 : 0;
    low[i] = mpg_plus(g, mpg_times(g, mpg_emit_roi_number(g, region, 2 - i, 3), scale), shift);
    high[i] = mpg_plus(g, mpg_times(g, mpg_emit_roi_number(g, region, 4 - i, 3), scale), shift);
    mpg_value size = mpg_subtract(g, high[i], low[i]);
    if (!params->aligned) size = mpg_emit_scalar(g, MPG_OP__maximum_scalar, size, 1);
    extents[i] = (extent){.begin = low[i],
                          .size = size,
                          .bins = params->pooled_size.values[i],
                          .elements = shape.dims[2 + i]};
  }
  mpg_value result = MPG_NO_VALUE;
  if (g->status != MPG_OK) return;
  if (params->sample_ratio > 0 && params->sample_ratio <= MOST_SAMPLES &&
      !params->position_sensitive) {
    result = sampled(g, data, region, &extents[0], &extents[1], params->sample_ratio);
  } else {
    mpg_dtype wide = mpg_value_desc(g, data)->dtype;
    mpg_value rows = weights_along(g, &extents[0], params->sample_ratio, wide),
              columns = weights_along(g, &extents[1], params->sample_ratio, wide);
    rows = of_image(g, rows, mpg_emit_roi_image(g, region, 3), shape.dims[0]);
    result = params->position_sensitive ? weighted_by_bin(g, data, rows, columns)
                                        : weighted(g, data, rows, columns);
  }
  outputs[0] = mpg_emit_cast(g, result, dtype);
}
