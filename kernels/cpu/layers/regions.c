/* Regions of interest (ROI): maximum pooling, and averages of samples in rotated regions. A work
 * unit is one channel (maximum pooling) or one bin (rotated regions) of a region. */
#include <math.h>

#include "kernels/common/index.h"
#include "kernels/common/real.h"
#include "kernels/common/regions.h"
#include "kernels/cpu/cpu.h"

typedef struct job {
  const mpg_kernel_call *call;
  int64_t pictures, channels, height, width, high, wide_bins;
  bool wide; /* float64 */
} job;

static job job_of(const mpg_kernel_call *call) {
  const mpg_shape *data = &call->inputs[0].desc.shape, *out = &call->outputs[0].desc.shape;
  return (job){.call = call,
               .pictures = data->dims[0],
               .channels = data->dims[1],
               .height = data->dims[2],
               .width = data->dims[3],
               .high = out->dims[2],
               .wide_bins = out->dims[3],
               .wide = call->inputs[0].desc.dtype == MPG_FLOAT64};
}

/* --- Maximum pooling -------------------------------------------------------------------------- */
/* Returns the index of the largest element in rows [y, ye) and columns [x, xe) of the plane that
 * starts at `first`, or of the first NaN if there is one. Returns -1 if the range is empty. */
#define LARGEST(name, type, value_of)                                                        \
  static int64_t name(const void *data, int64_t first, int64_t width, int64_t y, int64_t ye, \
                      int64_t x, int64_t xe) {                                               \
    const type *elements = data;                                                             \
    int64_t best = -1;                                                                       \
    double most = 0;                                                                         \
    for (int64_t i = y; i < ye; i++)                                                         \
      for (int64_t j = x; j < xe; j++) {                                                     \
        double value = value_of(elements[first + i * width + j]);                            \
        if (best >= 0 && value <= most) continue;                                            \
        best = first + i * width + j, most = value;                                          \
        if (value != value) return best;                                                     \
      }                                                                                      \
    return best;                                                                             \
  }
LARGEST(largest_float, float, (double))
LARGEST(largest_double, double, )
LARGEST(largest_half, uint16_t, mpg_half_to_float)
LARGEST(largest_bfloat, uint16_t, mpg_bfloat16_to_float)

static void largest_rows(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  const mpg_roi_pooling_params *p = t->call->params;
  const mpg_view *data = &t->call->inputs[0], *rois = &t->call->inputs[1];
  int64_t (*largest)(const void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t) =
      data->desc.dtype == MPG_FLOAT32   ? largest_float
      : data->desc.dtype == MPG_FLOAT64 ? largest_double
      : data->desc.dtype == MPG_FLOAT16 ? largest_half
                                        : largest_bfloat;
  for (int64_t row = begin; row < end; row++) {
    int64_t region = row / t->channels, *out = t->call->outputs[0].data;
    double roi[5];
    for (int k = 0; k < 5; k++) roi[k] = mpg_real_at(rois, 5 * region + k);
    int64_t picture = mpg_whole(roi[0]);
    bool there = picture >= 0 && picture < t->pictures;
    int64_t plane = there ? (picture * t->channels + row % t->channels) * t->height * t->width : 0;
    out += row * t->high * t->wide_bins;
    for (int64_t i = 0; i < t->high; i++) {
      int64_t y, ye, x, xe;
      mpg_region_bin(roi[2], roi[4], p->spatial_scale, t->high, i, t->height, t->wide, &y, &ye);
      for (int64_t j = 0; j < t->wide_bins; j++) {
        mpg_region_bin(roi[1], roi[3], p->spatial_scale, t->wide_bins, j, t->width, t->wide, &x,
                       &xe);
        *out++ = there ? largest(data->data, plane, t->width, y, ye, x, xe) : -1;
      }
    }
  }
}

mpg_status mpg_cpu_roi_max_places(const mpg_kernel_call *call) {
  job t = job_of(call);
  mpg_cpu_parallel_for(call, call->outputs[0].desc.shape.dims[0] * t.channels, 1, largest_rows, &t);
  return MPG_OK;
}

/* --- Rotated regions -------------------------------------------------------------------------- */
static void rotated_bins(void *context, int64_t begin, int64_t end) {
  enum { BLOCK = 64 };
  const job *t = context;
  const mpg_rroi_align_params *p = t->call->params;
  const mpg_view *data = &t->call->inputs[0], *rois = &t->call->inputs[1];
  int64_t bins = t->high * t->wide_bins, plane = t->height * t->width;
  for (int64_t i = begin; i < end; i++) {
    int64_t region = i / bins, bin = i % bins;
    double roi[6];
    for (int k = 0; k < 6; k++) roi[k] = mpg_real_at(rois, 6 * region + k);
    mpg_rotated_region r = mpg_rotated_region_of(roi + 1, p->spatial_scale, t->high, t->wide_bins,
                                                 p->sampling_ratio, t->wide);
    int64_t picture = mpg_whole(roi[0]);
    bool there = picture >= 0 && picture < t->pictures;
    for (int64_t first = 0; first < t->channels; first += BLOCK) {
      int64_t count = t->channels - first < BLOCK ? t->channels - first : BLOCK;
      double sums[BLOCK] = {0};
      for (int64_t s = 0; s < r.down * r.across && there; s++) {
        double down = ((double)(bin / t->wide_bins) +
                       ((double)(s / r.across) + 0.5) / (double)r.down) /
                      (double)t->high,
               across = ((double)(bin % t->wide_bins) +
                         ((double)(s % r.across) + 0.5) / (double)r.across) /
                        (double)t->wide_bins;
        mpg_four_elements four = mpg_rotated_sample(&r, down, across, t->height, t->width);
        for (int64_t c = 0; c < count; c++) {
          int64_t from = (picture * t->channels + first + c) * plane;
          for (int k = 0; k < 4; k++)
            sums[c] += four.weight[k] * mpg_real_at(data, from + four.at[k]);
        }
      }
      for (int64_t c = 0; c < count; c++)
        mpg_real_store(&t->call->outputs[0], (region * t->channels + first + c) * bins + bin,
                       sums[c] / (double)(r.down * r.across));
    }
  }
}

mpg_status mpg_cpu_rroi_align(const mpg_kernel_call *call) {
  job t = job_of(call);
  mpg_cpu_parallel_for(call, call->outputs[0].desc.shape.dims[0] * t.high * t.wide_bins, 1,
                       rotated_bins, &t);
  return MPG_OK;
}
