/* Bilinear sampling of images at computed positions, shared by several composed ops. These
 * functions may be called from any thread. */
#ifndef MPG_OP_VISION_SAMPLING_H
#define MPG_OP_VISION_SAMPLING_H

#include "op/op.h"

/* The pixels of images as rows (positions, channels). */
typedef struct mpg_pixels {
  mpg_value rows;
  /* Row index of the first pixel of each image, of dtype `index`; broadcasts to positions. */
  mpg_value base;
  mpg_dtype index; /* int32; int64 if the number of rows requires it */
  int64_t height, width;
  /* If true, positions outside the image get the value at the image's edge; otherwise they get
   * 0. */
  bool clamped;
} mpg_pixels;

/* Converts data (batch, groups * channels, height, width) for mpg_emit_sampled. The positions
 * passed there must have `ndim` axes, beginning with batch and, if there are several groups,
 * group. */
mpg_pixels mpg_emit_pixels(mpg_gradient *g, mpg_value data, int64_t groups, int ndim);
/* Samples the pixels at the positions y and x, two arrays of the same shape, by bilinear
 * interpolation. The result has an additional last axis, the channels. */
mpg_value mpg_emit_sampled(mpg_gradient *g, const mpg_pixels *pixels, mpg_value y, mpg_value x);

/* Resizes `data` to `size` elements along an axis. Kinds and positions are in
 * op/vision/resample.h. */
mpg_value mpg_emit_resample(mpg_gradient *g, mpg_value data, int axis, int64_t size, int kind,
                            bool align_corners);

#endif
