/* Resampling along an axis: computes which input elements contribute to a result element, and their
 * weights. These functions are stateless and may be called from any thread.
 */
#ifndef MPG_OP_VISION_RESAMPLE_H
#define MPG_OP_VISION_RESAMPLE_H

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"

/* Interpolation kinds, numbered as in OpenCV. Here, AREA is only used to enlarge; image_resize.c
 * handles shrinking by area averaging. */
enum {
  MPG_RESAMPLE_NEAREST,
  MPG_RESAMPLE_LINEAR,
  MPG_RESAMPLE_CUBIC,
  MPG_RESAMPLE_AREA,
  MPG_RESAMPLE_LANCZOS
};

typedef struct mpg_resample_axis {
  int64_t from, size;
  double scale; /* input elements per result element */
  int kind, count;
  /* If 1 (align_corners), the centers of the first and last elements stay in place. If 0, their
   * outer edges do. */
  int corners;
} mpg_resample_axis;

typedef struct mpg_taps {
  int64_t at[8];
  double weight[8];
} mpg_taps;

MPG_HOST_DEVICE mpg_resample_axis mpg_resample_axis_of(int64_t from, int64_t size, int kind,
                                                       int corners) {
  mpg_resample_axis axis;
  axis.from = from, axis.size = size, axis.kind = kind, axis.corners = corners;
  axis.count = kind == MPG_RESAMPLE_NEAREST   ? 1
               : kind == MPG_RESAMPLE_CUBIC   ? 4
               : kind == MPG_RESAMPLE_LANCZOS ? 8
                                              : 2;
  axis.scale = !corners   ? 1 / ((double)size / (double)from) /* rounded as in OpenCV */
               : size > 1 ? (double)(from - 1) / (double)(size - 1)
                          : 0;
  return axis;
}

MPG_HOST_DEVICE int64_t mpg_resample_clip(int64_t index, int64_t size) {
  return index < 0 ? 0 : index >= size ? size - 1 : index;
}

/* Cubic convolution kernel with the parameter a = -0.75: mpg_cubic_near for distances below 1,
 * mpg_cubic_far for distances from 1 to 2. */
MPG_HOST_DEVICE double mpg_cubic_near(double x) { return (1.25 * x - 2.25) * x * x + 1; }
MPG_HOST_DEVICE double mpg_cubic_far(double x) { return ((-0.75 * x + 3.75) * x - 6) * x + 3; }

/* Returns the input elements of result element i and their weights. Indices outside the input are
 * clamped. */
MPG_HOST_DEVICE mpg_taps mpg_resample_taps(const mpg_resample_axis *axis, int64_t i) {
  mpg_taps taps;
  double place, low, part;
  if (axis->kind == MPG_RESAMPLE_NEAREST || axis->kind == MPG_RESAMPLE_AREA) {
    low = floor((double)i * axis->scale);
    part = (double)(i + 1) - (low + 1) * ((double)axis->size / (double)axis->from);
    part = fmax((double)(float)part, 0.0); /* OpenCV uses float here */
    part -= floor(part);
  } else {
    place = axis->corners ? (double)i * axis->scale : ((double)i + 0.5) * axis->scale - 0.5;
    if (axis->kind == MPG_RESAMPLE_LINEAR) place = fmin(fmax(place, 0.0), (double)(axis->from - 1));
    low = floor(place);
    part = place - low;
  }
  int64_t first = (int64_t)low - (axis->count > 1 ? axis->count / 2 - 1 : 0);
  for (int k = 0; k < axis->count; k++) taps.at[k] = mpg_resample_clip(first + k, axis->from);
  if (axis->kind == MPG_RESAMPLE_NEAREST) {
    taps.weight[0] = 1;
  } else if (axis->kind == MPG_RESAMPLE_CUBIC) {
    taps.weight[0] = mpg_cubic_far(part + 1);
    taps.weight[1] = mpg_cubic_near(part);
    taps.weight[2] = mpg_cubic_near(1 - part);
    taps.weight[3] = mpg_cubic_far(2 - part);
  } else if (axis->kind == MPG_RESAMPLE_LANCZOS) {
    /* Lanczos weights sin(pi t) sin(pi t / 4) / t^2. |sin(pi t)| is equal for all taps, so its
     * sign suffices before the weights are normalized. */
    double sum = 0;
    for (int k = 0; k < 8; k++) {
      double t = k == 3 ? fmax(part, 1e-9) : part + (3 - k);
      taps.weight[k] = (k % 2 ? -1 : 1) * sin(t * (3.14159265358979323846 / 4)) / (t * t);
      sum += taps.weight[k];
    }
    for (int k = 0; k < 8; k++) taps.weight[k] /= sum;
  } else {
    taps.weight[0] = 1 - part;
    taps.weight[1] = part;
  }
  return taps;
}

/* Computes a range [*begin, *end) that contains all result elements that depend on input element
 * `at`. */
MPG_HOST_DEVICE void mpg_resample_users(const mpg_resample_axis *axis, int64_t at, int64_t *begin,
                                        int64_t *end) {
  double reach = axis->count + 1;
  *begin = 0, *end = axis->size;
  if (axis->scale <= 0) return;
  double first = ((double)at - reach) / axis->scale - 2,
         last = ((double)at + reach) / axis->scale + 2;
  if (at > 0 && first > 0) *begin = mpg_resample_clip((int64_t)first, axis->size);
  if (at < axis->from - 1 && last < (double)axis->size) *end = (int64_t)last + 1;
}

#endif
