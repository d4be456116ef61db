/* Bilinear sampling at computed places, which several composed ops share. Any thread may call. */
#ifndef MPG_OP_VISION_SAMPLING_H
#define MPG_OP_VISION_SAMPLING_H

#include "op/op.h"

/* The elements of pictures as rows (places, channels). */
typedef struct mpg_pixels {
  mpg_value rows;
  mpg_value
      base; /* of dtype `index`: the row of each picture's first place; broadcasts to positions */
  mpg_dtype index; /* int32, or int64 where there are more rows */
  int64_t height, width;
  bool clamped; /* places outside are those of the edge; else they are 0 */
} mpg_pixels;

/* Of data (batch, groups * channels, height, width). Positions will have `ndim` axes, of which the
 * first are batch and, with several groups, group. */
mpg_pixels mpg_emit_pixels(mpg_gradient *g, mpg_value data, int64_t groups, int ndim);
/* (..., channels) at positions y and x (...), between elements by linear interpolation. */
mpg_value mpg_emit_sampled(mpg_gradient *g, const mpg_pixels *pixels, mpg_value y, mpg_value x);

/* `data` in `size` elements along an axis; kinds and positions: op/vision/resample.h. */
mpg_value mpg_emit_resample(mpg_gradient *g, mpg_value data, int axis, int64_t size, int kind,
                            bool align_corners);

#endif
