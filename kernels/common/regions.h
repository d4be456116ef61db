/* Bins of regions of interest (ROI) in MXNet's precision: float32, or float64 for float64 arrays.
 * These functions are stateless and may be called from any thread. */
#ifndef KERNELS_COMMON_REGIONS_H
#define KERNELS_COMMON_REGIONS_H

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"

MPG_HOST_DEVICE double mpg_region_round(double x, int wide) { return wide ? x : (double)(float)x; }

/* Computes the range [*begin, *end) of elements that bin number `bin` covers along an axis with
 * `elements` elements. The region spans `low` to `high`, which are multiplied by `scale` and
 * rounded to elements. */
MPG_HOST_DEVICE void mpg_region_bin(double low, double high, double scale, int64_t bins,
                                    int64_t bin, int64_t elements, int wide, int64_t *begin,
                                    int64_t *end) {
  scale = (double)(float)scale;
  double first = round(mpg_region_round(low * scale, wide)),
         last = round(mpg_region_round(high * scale, wide));
  double size = mpg_region_round(fmax(last - first + 1, 1.0) / (double)bins, wide);
  double from = floor(mpg_region_round((double)bin * size, wide)) + first,
         to = ceil(mpg_region_round((double)(bin + 1) * size, wide)) + first;
  *begin = (int64_t)fmin(fmax(from, 0.0), (double)elements);
  *end = (int64_t)fmin(fmax(to, 0.0), (double)elements);
}

/* Rotated region: its center, size, cosine and sine of its angle, and the number of sample rows
 * (`down`) and columns (`across`) per bin. */
typedef struct mpg_rotated_region {
  double x, y, width, height, cosine, sine;
  int64_t down, across;
} mpg_rotated_region;

/* Maximum number of samples along one side of a bin, which bounds the work for huge regions. Even
 * large images are rarely wider than this many pixels. */
enum { MPG_MOST_SAMPLES = 4096 };

MPG_HOST_DEVICE mpg_rotated_region mpg_rotated_region_of(const double *numbers, double scale,
                                                         int64_t high, int64_t wide_bins,
                                                         int64_t ratio, int wide) {
  mpg_rotated_region r;
  double angle = mpg_region_round(numbers[4] * 3.14159265358979323846 / 180, wide);
  r.x = mpg_region_round(numbers[0] * scale, wide);
  r.y = mpg_region_round(numbers[1] * scale, wide);
  r.width = fmax(mpg_region_round(numbers[2] * scale, wide), 1.0);
  r.height = fmax(mpg_region_round(numbers[3] * scale, wide), 1.0);
  r.cosine = cos(angle), r.sine = sin(angle);
  double down = ceil(mpg_region_round(r.height / (double)high, wide)),
         across = ceil(mpg_region_round(r.width / (double)wide_bins, wide));
  r.down = ratio > 0 ? ratio : (int64_t)fmin(down, MPG_MOST_SAMPLES);
  r.across = ratio > 0 ? ratio : (int64_t)fmin(across, MPG_MOST_SAMPLES);
  return r;
}

/* The four elements around a sample and their weights for bilinear interpolation. The weights are 0
 * if the sample is outside the image. */
typedef struct mpg_four_elements {
  int64_t at[4];
  double weight[4];
} mpg_four_elements;

/* Returns the four elements around a sample. (down, across) is the sample's position as fractions
 * of the region's height and width. */
MPG_HOST_DEVICE mpg_four_elements mpg_rotated_sample(const mpg_rotated_region *r, double down,
                                                     double across, int64_t height, int64_t width) {
  mpg_four_elements four;
  double y = (down - 0.5) * r->height, x = (across - 0.5) * r->width;
  double px = x * r->cosine + y * r->sine + r->x, py = y * r->cosine - x * r->sine + r->y;
  int inside = py >= -1 && py <= (double)height && px >= -1 && px <= (double)width;
  px = inside ? fmin(fmax(px, 0.0), (double)(width - 1)) : 0;
  py = inside ? fmin(fmax(py, 0.0), (double)(height - 1)) : 0;
  int64_t left = (int64_t)px, top = (int64_t)py, right = left + 1 < width ? left + 1 : left,
          bottom = top + 1 < height ? top + 1 : top;
  double lx = px - (double)left, ly = py - (double)top, one = inside ? 1 : 0;
  four.at[0] = top * width + left, four.weight[0] = one * (1 - ly) * (1 - lx);
  four.at[1] = top * width + right, four.weight[1] = one * (1 - ly) * lx;
  four.at[2] = bottom * width + left, four.weight[2] = one * ly * (1 - lx);
  four.at[3] = bottom * width + right, four.weight[3] = one * ly * lx;
  return four;
}

#endif
