/* Object detection, with the same results as kernels/cpu/layers/detection.c. One sort orders the
 * boxes of all samples by descending score. Non-maximum suppression processes tiles of TILE boxes
 * in that order: one block per sample decides which boxes of the tile stay, then many blocks remove
 * the later boxes that the tile's boxes suppress. */
#include "kernels/cuda/array/radix_sort.h"

extern "C" {
#include "kernels/common/boxes.h"
}

namespace {

enum { TILE = MPG_CUDA_THREADS };

/* Returns how many threads of the block with a smaller index have `flag` set. `flags` is shared
 * memory with one element per thread. */
__device__ __forceinline__ int count_before(bool flag, bool *flags) {
  int before = 0;
  flags[threadIdx.x] = flag;
  __syncthreads();
  for (unsigned i = 0; i < threadIdx.x; i++) before += flags[i];
  return before;
}

/* --- Non-maximum suppression ------------------------------------------------------------------ */
/* `order` lists the indices of boxes by rank, s.boxes per sample. The index of a suppressed box is
 * replaced with its bitwise complement. S provides:
 * - load(index, &box): returns false if the box is not a candidate.
 * - covers(one, other): returns true if box `one` suppresses box `other`.
 * - stay(sample, stays, index): receives the decision about a box. */

template <class S>
__global__ void within_kernel(S s, int32_t *order, int64_t looked, int64_t first) {
  __shared__ mpg_box boxes[TILE];
  __shared__ bool stays[TILE];
  int64_t rank = first + threadIdx.x, at = (int64_t)blockIdx.x * s.boxes + rank;
  int32_t place = rank < looked ? order[at] : -1;
  mpg_box own = {};
  bool counts = place >= 0 && s.load(place, &own), left = counts;
  boxes[threadIdx.x] = own;
  stays[threadIdx.x] = left;
  __syncthreads();
  for (unsigned i = 0; i < TILE && first + i < looked; i++) {
    if (!stays[i]) continue; /* uniform across the block */
    if (left && i < threadIdx.x && s.covers(&boxes[i], &own)) stays[threadIdx.x] = left = false;
    __syncthreads();
  }
  if (counts && !left) order[at] = ~place;
  s.stay(blockIdx.x, left, place);
}

template <class S>
__global__ void behind_kernel(S s, int32_t *order, int64_t looked, int64_t first, unsigned blocks) {
  __shared__ mpg_box boxes[TILE];
  __shared__ bool stays[TILE];
  int64_t sample = blockIdx.x / blocks * s.boxes,
          rank = first + TILE * (1 + (int64_t)(blockIdx.x % blocks)) + threadIdx.x;
  int32_t front = order[sample + first + threadIdx.x],
          place = rank < looked ? order[sample + rank] : -1;
  mpg_box own;
  stays[threadIdx.x] = front >= 0 && s.load(front, &boxes[threadIdx.x]);
  __syncthreads();
  if (place < 0 || !s.load(place, &own)) return;
  for (int i = 0; i < TILE; i++)
    if (stays[i] && s.covers(&boxes[i], &own)) {
      order[sample + rank] = ~place;
      return;
    }
}

/* Runs non-maximum suppression on the first `looked` boxes by rank of each sample. */
template <class S>
mpg_status suppress(const mpg_kernel_call *call, const S &s, int64_t samples, int32_t *order,
                    int64_t looked) {
  for (int64_t first = 0; first < looked; first += TILE) {
    unsigned blocks = mpg_cuda_blocks(looked - first - TILE);
    MPG_TRY(mpg_cuda_launch(call, within_kernel<S>, (unsigned)samples, TILE, 0, s, order, looked,
                            first));
    if (looked - first > TILE)
      MPG_TRY(mpg_cuda_launch(call, behind_kernel<S>, (unsigned)samples * blocks, TILE, 0, s, order,
                              looked, first, blocks));
  }
  return MPG_OK;
}

/* --- box_nms ---------------------------------------------------------------------------------- */

struct scored_rows {
  mpg_view data;
  mpg_box_nms_params p;
  int64_t boxes, width;
  bool wide;
  int64_t *record;
  uint32_t *kept; /* number of boxes kept so far, per sample */
  __device__ bool load(int64_t place, mpg_box *box) const {
    return mpg_nms_candidate(&p, &data, place * width, wide, box);
  }
  __device__ bool covers(const mpg_box *one, const mpg_box *other) const {
    return mpg_nms_covers(&p, one, other, wide);
  }
  __device__ void stay(int64_t sample, bool stays, int64_t place) const {
    __shared__ bool flags[TILE];
    int64_t to = (int64_t)kept[sample] + count_before(stays, flags);
    if (stays) record[sample * boxes + to] = place - sample * boxes;
    __syncthreads();
    if (threadIdx.x == TILE - 1) kept[sample] = (uint32_t)(to + stays);
  }
};

__global__ void scores_kernel(scored_rows s, mpg_cuda_rows rows) {
  int64_t at = MPG_CUDA_INDEX;
  if (at >= rows.rows * rows.n) return;
  mpg_box box = {};
  bool counts = s.load(at, &box);
  uint64_t key = s.wide ? mpg_cuda_sort_key(box.score) : mpg_cuda_sort_key((float)box.score);
  rows.put(at, counts ? ~key : UINT64_MAX);
  s.record[at] = -1;
}

__global__ void kept_kernel(scored_rows s, mpg_view out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t row = i / s.width, k = i % s.width, from = s.record[row];
  double value = -1;
  if (from >= 0) {
    int64_t source = (row / s.boxes * s.boxes + from) * s.width, in_box = k - s.p.coord_start;
    value = mpg_real_at(&s.data, source + k);
    if (s.p.in_format != s.p.out_format && in_box >= 0 && in_box < 4) {
      mpg_box box = mpg_box_at(&s.data, source + s.p.coord_start, s.p.in_format, false, s.wide);
      mpg_box_convert(box.at, s.p.in_format);
      value = box.at[in_box];
    }
  }
  mpg_real_store(&out, i, value);
}

__global__ void as_it_is_kernel(int64_t *record, int64_t boxes, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) record[i] = i % boxes;
}

template <class T>
__global__ void back_kernel(const T *grad, const int64_t *record, T *out, int64_t boxes,
                            int64_t width, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t row = i / width, to = record[row];
  if (to >= 0 && to < boxes) out[(row / boxes * boxes + to) * width + i % width] = grad[i];
}

/* --- MultiBoxDetection ------------------------------------------------------------------------ */

struct detections {
  mpg_view inputs[3];
  mpg_multibox_detection_params p;
  int64_t boxes;
  bool wide;
  mpg_box *found;
  __device__ bool load(int64_t place, mpg_box *box) const {
    *box = found[place];
    return box->id >= 0;
  }
  __device__ bool covers(const mpg_box *one, const mpg_box *other) const {
    return mpg_detection_covers(&p, one, other, wide);
  }
  __device__ void stay(int64_t, bool, int64_t) const {}
};

__global__ void detect_kernel(detections t, mpg_cuda_rows rows) {
  int64_t at = MPG_CUDA_INDEX;
  if (at >= rows.rows * rows.n) return;
  mpg_box box = mpg_detection(&t.p, t.inputs, at / t.boxes, at % t.boxes, t.wide);
  uint64_t key = t.wide ? mpg_cuda_sort_key(box.score) : mpg_cuda_sort_key((float)box.score);
  t.found[at] = box;
  rows.put(at, box.id >= 0 ? ~key : UINT64_MAX);
}

/* Stores the indices of a sample's detections in ascending order, followed by -1. */
__global__ void list_kernel(detections t, int32_t *list) {
  __shared__ bool flags[TILE];
  int64_t first = (int64_t)blockIdx.x * t.boxes, listed = 0;
  for (int64_t begin = 0; begin < t.boxes; begin += TILE) {
    int64_t i = begin + threadIdx.x;
    bool is = i < t.boxes && t.found[first + i].id >= 0;
    int before = count_before(is, flags);
    if (is) list[first + listed + before] = (int32_t)(first + i);
    listed += __syncthreads_count(is);
  }
  for (int64_t i = listed + threadIdx.x; i < t.boxes; i += TILE) list[first + i] = -1;
}

/* Stores the detections. The first `looked` slots of a sample hold boxes by rank, with id -1 if
 * suppressed. Slot i of the rest holds box list[i], with id -1 unless `looked` is 0. */
__global__ void detections_kernel(detections t, const int32_t *order, const int32_t *list,
                                  int64_t looked, int64_t count, mpg_view out) {
  int64_t at = MPG_CUDA_INDEX;
  if (at >= count) return;
  bool sorted = at % t.boxes < looked, stays = sorted || looked == 0;
  int64_t place = sorted ? order[at] : list[at];
  if (sorted && place < 0) stays = false, place = ~place;
  mpg_box box = {{-1, -1, -1, -1}, 0, -1, -1};
  if (place >= 0) box = t.found[place];
  mpg_real_store(&out, 6 * at, stays ? box.id : -1);
  mpg_real_store(&out, 6 * at + 1, box.score);
  for (int k = 0; k < 4; k++) mpg_real_store(&out, 6 * at + 2 + k, box.at[k]);
}

/* --- Overlaps and anchors --------------------------------------------------------------------- */

__global__ void iou_kernel(mpg_view lhs, mpg_view rhs, mpg_view out, int64_t others, int format,
                           bool wide, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  mpg_box a = mpg_box_at(&lhs, i / others * 4, format, false, wide),
          b = mpg_box_at(&rhs, i % others * 4, format, false, wide);
  mpg_real_store(&out, i, mpg_box_overlap(&a, &b, format, wide));
}

__global__ void prior_kernel(mpg_multibox_prior_params p, int64_t height, int64_t width,
                             mpg_view out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  float box[4];
  if (i >= count) return;
  mpg_prior_box(&p, height, width, i, box);
  for (int k = 0; k < 4; k++) mpg_real_store(&out, 4 * i + k, box[k]);
}

/* --- MultiBoxTarget --------------------------------------------------------------------------- */

enum { NONE = -1, CANDIDATE = -2 }; /* CANDIDATE: the anchor may become background */

struct nearest {
  double overlap;
  int64_t anchor;
};

struct targets {
  mpg_view inputs[3], outputs[3];
  mpg_multibox_target_params p;
  int64_t samples, boxes, others, width;
  bool wide;
  uint32_t *objects, *positive; /* per sample: numbers of objects, and of anchors with an object */
  nearest *best;  /* per object: best free anchor; -1 if it is matched or none is left */
  int64_t *match; /* per anchor: its object, NONE or CANDIDATE */
  __device__ mpg_box anchor(int64_t j) const {
    return mpg_box_at(&inputs[0], 4 * j, MPG_CORNER, true, wide);
  }
  __device__ mpg_box object(int64_t n, int64_t k) const {
    return mpg_box_at(&inputs[1], (n * others + k) * width + 1, MPG_CORNER, true, wide);
  }
};

/* Finds the free anchor that overlaps most with an object. Ties go to the first anchor. All threads
 * of the block must call it, and all get the result. */
__device__ nearest nearest_anchor(const targets &t, int64_t n, int64_t k) {
  mpg_box object = t.object(n, k);
  nearest own = {(double)1e-6f, INT64_MAX};
  for (int64_t j = threadIdx.x; j < t.boxes; j += blockDim.x) {
    if (t.match[n * t.boxes + j] >= 0) continue;
    mpg_box anchor = t.anchor(j);
    double overlap = mpg_box_share(&anchor, &object, false, t.wide);
    if (overlap > own.overlap) own.overlap = overlap, own.anchor = j;
  }
  double most = mpg_block_reduce(own.overlap, 0.0, mpg_larger());
  int64_t anchor =
      mpg_block_reduce(own.overlap == most ? own.anchor : INT64_MAX, INT64_MAX, mpg_smaller());
  return {most, anchor == INT64_MAX ? -1 : anchor};
}

/* Counts the objects of each sample and finds the anchor that overlaps most with each object. One
 * block per object. */
__global__ void nearest_kernel(targets t) {
  for (int64_t i = blockIdx.x; i < t.samples * t.others; i += gridDim.x) {
    int64_t n = i / t.others, k = i % t.others, objects = t.others;
    for (int64_t o = threadIdx.x; o < objects; o += blockDim.x)
      if (mpg_real_at(&t.inputs[1], (n * t.others + o) * t.width) == -1) objects = o;
    objects = mpg_block_reduce(objects, t.others, mpg_smaller());
    if (k == 0 && threadIdx.x == 0) t.objects[n] = (uint32_t)objects;
    if (k >= objects) continue;
    nearest best = nearest_anchor(t, n, k);
    if (threadIdx.x == 0) t.best[i] = best;
  }
}

/* Greedy matching: repeatedly matches the free anchor and the unmatched object that overlap most.
 * Ties go to the first anchor, then to the first object. One block per sample. */
__global__ void match_kernel(targets t) {
  int64_t n = blockIdx.x, objects = t.objects[n], matched = 0;
  nearest *best = t.best + n * t.others;
  for (; matched < objects; matched++) {
    double most = 0;
    int64_t anchor = INT64_MAX, object = INT64_MAX;
    for (int64_t k = threadIdx.x; k < objects; k += blockDim.x)
      if (best[k].anchor >= 0 &&
          (best[k].overlap > most || (best[k].overlap == most && best[k].anchor < anchor)))
        most = best[k].overlap, anchor = best[k].anchor, object = k;
    double all = mpg_block_reduce(most, 0.0, mpg_larger());
    if (all == 0) break; /* uniform across the block */
    int64_t first = mpg_block_reduce(most == all ? anchor : INT64_MAX, INT64_MAX, mpg_smaller());
    object = mpg_block_reduce(most == all && anchor == first ? object : INT64_MAX, INT64_MAX,
                              mpg_smaller());
    if (threadIdx.x == 0) {
      t.match[n * t.boxes + first] = object;
      best[object].anchor = -1;
    }
    __syncthreads();
    for (int64_t k = 0; k < objects; k++) {
      if (best[k].anchor != first) continue; /* uniform across the block */
      nearest again = nearest_anchor(t, n, k);
      if (threadIdx.x == 0) best[k] = again;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) t.positive[n] = (uint32_t)matched;
}

/* Matches each remaining anchor with the object that it overlaps most, if they overlap enough.
 * Computes the keys that sort background candidates by ascending background confidence. */
__global__ void classify_kernel(targets t, mpg_cuda_rows rows) {
  int64_t at = MPG_CUDA_INDEX, n = at / t.boxes, j = at % t.boxes, best = 0;
  if (at >= t.samples * t.boxes) return;
  double most = -1;
  if (t.match[at] < 0 && t.objects[n] > 0) {
    mpg_box anchor = t.anchor(j);
    for (int64_t k = 0; k < t.objects[n]; k++) {
      mpg_box object = t.object(n, k);
      double overlap = mpg_box_share(&anchor, &object, false, t.wide);
      if (k == 0 || overlap > most) most = overlap, best = k;
    }
    if (t.p.overlap_threshold > 0 && most > mpg_region_round(t.p.overlap_threshold, t.wide)) {
      t.match[at] = best;
      atomicAdd(&t.positive[n], 1u);
    } else if (!(t.p.negative_mining_ratio > 0) ||
               most < mpg_region_round(t.p.negative_mining_thresh, t.wide)) {
      t.match[at] = CANDIDATE;
    }
  }
  if (!(t.p.negative_mining_ratio > 0)) return;
  double sure = t.match[at] == CANDIDATE ? mpg_background(&t.inputs[2], n, j, t.wide) : 0;
  uint64_t key = t.wide ? mpg_cuda_sort_key(sure) : mpg_cuda_sort_key((float)sure);
  rows.put(at, t.match[at] == CANDIDATE ? key : UINT64_MAX);
}

/* Stores the targets of all anchors. For negative mining, `order` lists the anchors by background
 * confidence. Without mining, it is NULL. */
__global__ void targets_kernel(targets t, const int32_t *order) {
  int64_t at = MPG_CUDA_INDEX, n = at / t.boxes;
  if (at >= t.samples * t.boxes) return;
  int64_t place = order ? order[at] : at, match = t.match[place];
  bool background = match == CANDIDATE &&
                    (!order || at % t.boxes < mpg_background_wanted(&t.p, t.positive[n], t.boxes));
  mpg_put_target(&t.p, t.inputs, t.outputs, n, place - n * t.boxes,
                 match >= 0 ? n * t.others + match : -1, background ? 0 : t.p.ignore_label);
}

bool is_wide(const mpg_kernel_call *call) { return call->inputs[0].desc.dtype == MPG_FLOAT64; }

} // namespace

mpg_status mpg_cuda_box_iou(const mpg_kernel_call *call) {
  const mpg_box_iou_params *p = (const mpg_box_iou_params *)call->params;
  int64_t count = count_of(&call->outputs[0]);
  return mpg_cuda_launch(call, iou_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         call->inputs[0], call->inputs[1], call->outputs[0],
                         count_of(&call->inputs[1]) / 4, p->format, is_wide(call), count);
}

mpg_status mpg_cuda_box_nms(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0];
  const int64_t *end = data->desc.shape.dims + data->desc.shape.ndim;
  scored_rows s = {};
  s.data = *data, s.p = *(const mpg_box_nms_params *)call->params;
  s.boxes = end[-2], s.width = end[-1];
  s.wide = is_wide(call);
  s.record = (int64_t *)call->outputs[1].data;
  int64_t all = count_of(&call->outputs[1]), count = count_of(data);
  if (all == 0) return MPG_OK;
  if (s.p.topk == 0) {
    MPG_TRY(mpg_cuda_copy(call, data, &call->outputs[0]));
    return mpg_cuda_launch(call, as_it_is_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0,
                           s.record, s.boxes, all);
  }
  int64_t samples = all / s.boxes, looked = s.p.topk > 0 && s.p.topk < s.boxes ? s.p.topk : s.boxes;
  mpg_cuda_rows rows;
  int32_t *order;
  void *memory;
  MPG_TRY(mpg_cuda_rows_new(call, samples, s.boxes, s.wide, (size_t)samples * sizeof *s.kept, &rows,
                            &memory));
  s.kept = (uint32_t *)memory;
  MPG_TRY(mpg_cuda_zero(call, s.kept, (size_t)samples * sizeof *s.kept));
  MPG_TRY(mpg_cuda_launch(call, scores_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0, s, rows));
  MPG_TRY(mpg_cuda_rows_sort(call, &rows, &order));
  MPG_TRY(suppress(call, s, samples, order, looked));
  return mpg_cuda_launch(call, kept_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, s,
                         call->outputs[0], count);
}

/* Each row of the data receives at most one gradient, because the indices in a record are distinct,
 * so no atomics are needed. */
mpg_status mpg_cuda_box_nms_back(const mpg_kernel_call *call) {
  const mpg_view *grad = &call->inputs[0], *out = &call->outputs[0];
  const int64_t *end = grad->desc.shape.dims + grad->desc.shape.ndim;
  int64_t count = count_of(grad);
  MPG_TRY(mpg_cuda_zero(call, out));
  MPG_CUDA_SIZE(
      item_of(grad), T,
      return mpg_cuda_launch(call, back_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)grad->data, (const int64_t *)call->inputs[1].data,
                             (T *)out->data, end[-2], end[-1], count));
  return MPG_OK;
}

mpg_status mpg_cuda_multibox_prior(const mpg_kernel_call *call) {
  const int64_t *picture = call->inputs[0].desc.shape.dims;
  int64_t count = call->outputs[0].desc.shape.dims[1];
  return mpg_cuda_launch(call, prior_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         *(const mpg_multibox_prior_params *)call->params, picture[2], picture[3],
                         call->outputs[0], count);
}

mpg_status mpg_cuda_multibox_detection(const mpg_kernel_call *call) {
  const int64_t *shape = call->inputs[0].desc.shape.dims;
  int64_t samples = shape[0], all = samples * shape[2];
  detections t = {};
  for (int i = 0; i < 3; i++) t.inputs[i] = call->inputs[i];
  t.p = *(const mpg_multibox_detection_params *)call->params;
  t.boxes = shape[2], t.wide = is_wide(call);
  if (all == 0) return MPG_OK;
  bool suppresses = mpg_detection_suppresses(&t.p);
  int64_t topk = suppresses && t.p.nms_topk > 0 ? t.p.nms_topk : t.boxes, looked = !suppresses ? 0
                                                                                   : topk < t.boxes
                                                                                       ? topk
                                                                                       : t.boxes;
  mpg_cuda_rows rows;
  int32_t *order = NULL;
  void *memory;
  MPG_TRY(mpg_cuda_rows_new(call, samples, t.boxes, t.wide,
                            (size_t)all * (sizeof(mpg_box) + sizeof(int32_t)), &rows, &memory));
  t.found = (mpg_box *)memory;
  int32_t *list = (int32_t *)(t.found + all);
  MPG_TRY(mpg_cuda_launch(call, detect_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0, t, rows));
  if (looked < t.boxes)
    MPG_TRY(mpg_cuda_launch(call, list_kernel, (unsigned)samples, TILE, 0, t, list));
  if (suppresses) {
    MPG_TRY(mpg_cuda_rows_sort(call, &rows, &order));
    MPG_TRY(suppress(call, t, samples, order, looked));
  }
  return mpg_cuda_launch(call, detections_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0, t,
                         (const int32_t *)order, (const int32_t *)list, looked, all,
                         call->outputs[0]);
}

mpg_status mpg_cuda_multibox_target(const mpg_kernel_call *call) {
  const int64_t *label = call->inputs[1].desc.shape.dims;
  targets t = {};
  for (int i = 0; i < 3; i++) t.inputs[i] = call->inputs[i], t.outputs[i] = call->outputs[i];
  t.p = *(const mpg_multibox_target_params *)call->params;
  t.samples = label[0], t.others = label[1], t.width = label[2];
  t.boxes = call->inputs[0].desc.shape.dims[1], t.wide = is_wide(call);
  int64_t all = t.samples * t.boxes;
  if (all == 0) return MPG_OK;
  bool mining = t.p.negative_mining_ratio > 0;
  size_t best = (size_t)(t.samples * t.others) * sizeof(nearest),
         match = (size_t)all * sizeof(int64_t), counts = 2 * (size_t)t.samples * sizeof(uint32_t);
  mpg_cuda_rows rows;
  int32_t *order = NULL;
  void *memory;
  MPG_TRY(mpg_cuda_rows_new(call, mining ? t.samples : 0, t.boxes, t.wide, best + match + counts,
                            &rows, &memory));
  t.best = (nearest *)memory;
  t.match = (int64_t *)((char *)memory + best);
  t.objects = (uint32_t *)((char *)memory + best + match), t.positive = t.objects + t.samples;
  MPG_TRY(mpg_cuda_check(cudaMemsetAsync(t.match, 0xff, match, (cudaStream_t)call->stream),
                         "cudaMemsetAsync")); /* all NONE */
  MPG_TRY(mpg_cuda_zero(call, t.objects, counts));
  MPG_TRY(mpg_cuda_launch(call, nearest_kernel, mpg_cuda_blocks(t.samples * t.others, 1),
                          MPG_CUDA_THREADS, 0, t));
  MPG_TRY(mpg_cuda_launch(call, match_kernel, (unsigned)t.samples, MPG_CUDA_THREADS, 0, t));
  MPG_TRY(
      mpg_cuda_launch(call, classify_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0, t, rows));
  if (mining) MPG_TRY(mpg_cuda_rows_sort(call, &rows, &order));
  return mpg_cuda_launch(call, targets_kernel, mpg_cuda_blocks(all), MPG_CUDA_THREADS, 0, t,
                         (const int32_t *)order);
}
