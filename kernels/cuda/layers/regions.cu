/* Pooling of regions of interest (ROI), with one thread per bin of a channel, and greedy bipartite
 * matching of rows and columns by score, with one block per matrix. The results equal those of
 * kernels/cpu/layers/regions.c. */
#include "kernels/cuda/access.h"

extern "C" {
#include "kernels/common/regions.h"
}

namespace {

struct regions {
  mpg_untyped rois, out;
  int64_t pictures, channels, height, width, high, wide_bins, ratio, count;
  double scale;
  bool wide; /* true if the data is float64 */
};

regions regions_of(const mpg_kernel_call *call, double scale, int64_t ratio) {
  const mpg_shape *data = &call->inputs[0].desc.shape, *out = &call->outputs[0].desc.shape;
  regions t = {};
  t.rois = mpg_untyped_view(&call->inputs[1]);
  t.out = mpg_untyped_view(&call->outputs[0]);
  t.pictures = data->dims[0], t.channels = data->dims[1];
  t.height = data->dims[2], t.width = data->dims[3];
  t.high = out->dims[2], t.wide_bins = out->dims[3];
  t.ratio = ratio, t.scale = scale;
  t.wide = call->inputs[0].desc.dtype == MPG_FLOAT64;
  t.count = mpg_shape_size(out);
  return t;
}

template <class A>
__global__ void largest_kernel(A data, regions t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count) return;
  int64_t bin = i % (t.high * t.wide_bins), row = i / (t.high * t.wide_bins),
          region = row / t.channels, y, ye, x, xe, best = -1;
  double roi[5], most = 0;
  for (int k = 0; k < 5; k++) roi[k] = t.rois.load<double>(5 * region + k);
  int64_t picture = mpg_whole(roi[0]);
  mpg_region_bin(roi[2], roi[4], t.scale, t.high, bin / t.wide_bins, t.height, t.wide, &y, &ye);
  mpg_region_bin(roi[1], roi[3], t.scale, t.wide_bins, bin % t.wide_bins, t.width, t.wide, &x, &xe);
  if (picture >= 0 && picture < t.pictures) {
    int64_t plane = (picture * t.channels + row % t.channels) * t.height * t.width;
    for (; y < ye && most == most; y++)
      for (int64_t j = x; j < xe && most == most; j++) {
        double value = data.template load<double>(plane + y * t.width + j);
        if (best >= 0 && value <= most) continue;
        best = plane + y * t.width + j, most = value;
      }
  }
  t.out.store(i, best);
}

template <class A>
__global__ void rotated_kernel(A data, regions t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count) return;
  int64_t bin = i % (t.high * t.wide_bins), row = i / (t.high * t.wide_bins),
          region = row / t.channels;
  double roi[6], sum = 0;
  for (int k = 0; k < 6; k++) roi[k] = t.rois.load<double>(6 * region + k);
  mpg_rotated_region r =
      mpg_rotated_region_of(roi + 1, t.scale, t.high, t.wide_bins, t.ratio, t.wide);
  int64_t picture = mpg_whole(roi[0]);
  if (picture >= 0 && picture < t.pictures) {
    int64_t plane = (picture * t.channels + row % t.channels) * t.height * t.width;
    for (int64_t s = 0; s < r.down * r.across; s++) {
      double down =
                 ((double)(bin / t.wide_bins) + ((double)(s / r.across) + 0.5) / (double)r.down) /
                 (double)t.high,
             across =
                 ((double)(bin % t.wide_bins) + ((double)(s % r.across) + 0.5) / (double)r.across) /
                 (double)t.wide_bins;
      mpg_four_elements four = mpg_rotated_sample(&r, down, across, t.height, t.width);
      for (int k = 0; k < 4; k++)
        sum += four.weight[k] * data.template load<double>(plane + four.at[k]);
    }
  }
  t.out.store(i, sum / (double)(r.down * r.across));
}

/* --- Bipartite matching ----------------------------------------------------------------------- */
struct matching {
  mpg_untyped scores, rows, columns;
  int64_t num_rows, num_columns, most;
  double threshold;
  bool ascending;
};

/* Best score, and the first index with that score. */
struct best {
  double score;
  int64_t place;
};

__global__ void matching_kernel(matching t, best *parts) {
  int64_t n = blockIdx.x, size = t.num_rows * t.num_columns;
  for (int64_t i = threadIdx.x; i < t.num_rows; i += blockDim.x)
    t.rows.store(n * t.num_rows + i, -1.0);
  for (int64_t i = threadIdx.x; i < t.num_columns; i += blockDim.x)
    t.columns.store(n * t.num_columns + i, -1.0);
  parts += n * blockDim.x;
  __syncthreads();
  for (int64_t pairs = 0; t.most <= 0 || pairs <= t.most; pairs++) {
    best own = {0, -1};
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      double score = t.scores.load<double>(n * size + i);
      if (t.ascending ? !(score < t.threshold) : !(score > t.threshold)) continue;
      if (t.ascending) score = -score;
      if (own.place >= 0 && score <= own.score) continue;
      if (t.rows.load<double>(n * t.num_rows + i / t.num_columns) != -1 ||
          t.columns.load<double>(n * t.num_columns + i % t.num_columns) != -1)
        continue;
      own.score = score, own.place = i;
    }
    parts[threadIdx.x] = own;
    __syncthreads();
    best all = {0, -1};
    for (unsigned i = 0; i < blockDim.x; i++) {
      best one = parts[i];
      if (one.place < 0) continue;
      if (all.place < 0 || one.score > all.score ||
          (one.score == all.score && one.place < all.place))
        all = one;
    }
    __syncthreads();
    if (all.place < 0) return; /* uniform across the block */
    if (threadIdx.x == 0) {
      int64_t row = all.place / t.num_columns, column = all.place % t.num_columns;
      t.rows.store(n * t.num_rows + row, (double)column);
      t.columns.store(n * t.num_columns + column, (double)row);
    }
    __syncthreads();
  }
}

} // namespace

mpg_status mpg_cuda_roi_max_places(const mpg_kernel_call *call) {
  const mpg_roi_pooling_params *p = (const mpg_roi_pooling_params *)call->params;
  regions t = regions_of(call, p->spatial_scale, 0);
  MPG_CUDA_FLOAT_DTYPE(
      call->inputs[0].desc.dtype, T,
      return mpg_cuda_launch(call, largest_kernel<mpg_typed<T>>, mpg_cuda_blocks(t.count),
                             MPG_CUDA_THREADS, 0, mpg_typed_view<T>(&call->inputs[0]), t));
  return MPG_OK;
}

mpg_status mpg_cuda_rroi_align(const mpg_kernel_call *call) {
  const mpg_rroi_align_params *p = (const mpg_rroi_align_params *)call->params;
  regions t = regions_of(call, p->spatial_scale, p->sampling_ratio);
  MPG_CUDA_FLOAT_DTYPE(
      call->inputs[0].desc.dtype, T,
      return mpg_cuda_launch(call, rotated_kernel<mpg_typed<T>>, mpg_cuda_blocks(t.count),
                             MPG_CUDA_THREADS, 0, mpg_typed_view<T>(&call->inputs[0]), t));
  return MPG_OK;
}

mpg_status mpg_cuda_bipartite_matching(const mpg_kernel_call *call) {
  const mpg_bipartite_params *p = (const mpg_bipartite_params *)call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  matching t = {};
  t.scores = mpg_untyped_view(&call->inputs[0]);
  t.rows = mpg_untyped_view(&call->outputs[0]);
  t.columns = mpg_untyped_view(&call->outputs[1]);
  t.num_rows = shape->dims[shape->ndim - 2], t.num_columns = shape->dims[shape->ndim - 1];
  t.most = p->topk, t.threshold = (double)(float)p->threshold, t.ascending = p->is_ascend;
  int64_t samples = mpg_shape_product(shape, 0, shape->ndim - 2);
  best *parts = NULL;
  if (samples > 0) {
    parts =
        (best *)mpg_device_scratch(call->device, (size_t)samples * MPG_CUDA_THREADS * sizeof(best));
    if (!parts) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  return mpg_cuda_launch(call, matching_kernel, (unsigned)samples, MPG_CUDA_THREADS, 0, t, parts);
}
