/* Declarations shared by the attention kernels. attention.cu supports every dtype;
 * attention_tensor.cu (forward) and attention_gradient.cu (backward) use tensor cores for float16
 * and bfloat16. Include in .cu files only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_H
#define KERNELS_CUDA_LAYERS_ATTENTION_H

#include "kernels/cuda/cuda.h"
#include "op/layers/attention_call.h"

/* Location of queries, keys, values or results: an array (batch, head, row, feature) with three
 * strides. The features of a row are contiguous. */
template <class T>
struct mpg_place {
  T *data;
  int64_t by_batch, by_head, by_row;
};

/* Type of the mask's elements; MPG_MASK_NONE if there is no mask. */
enum mpg_mask_kind { MPG_MASK_NONE, MPG_MASK_BOOL, MPG_MASK_FLOAT, MPG_MASK_SAME };

template <class T>
struct mpg_attention {
  int64_t heads, group /* heads per key head */, rows, keys, width, value_width;
  mpg_place<T> query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const void *mask; /* added to the scores, or bool (true is seen) */
  mpg_mask_kind mask_kind;
  int64_t mask_batch, mask_head, mask_row, mask_key; /* strides of the mask */
  const int32_t *lengths, *segments;                 /* NULL for none */
  int64_t window;                                    /* 0 for none */
  /* Softmax statistics per head: the largest score of each row, then each row's sum of
   * exponentials. */
  mpg_compute_t<T> *sums;
  mpg_compute_t<T> *inner; /* backward: inner product of grad and output, per row */
  mpg_compute_t<T> scale, kept_scale, softcap /* 0 for none */;
  bool causal, drops, empty_is_zero, cached;
  mpg_cuda_key draw;
  const uint64_t *drawn; /* backward: the forward pass's key, in device memory */
  uint32_t threshold;    /* a weight is kept if its random word's upper 24 bits are below it */
};

template <class T>
__device__ __forceinline__ T *mpg_at(const mpg_place<T> &p, int64_t batch, int64_t head) {
  return p.data + batch * p.by_batch + head * p.by_head;
}

/* A range [low, high); empty ranges are (0, 0). */
struct mpg_range {
  int64_t low, high;
  __device__ __forceinline__ bool has(int64_t i) const { return i >= low && i < high; }
};
__device__ __forceinline__ mpg_range mpg_range_within(int64_t low, int64_t high, int64_t end) {
  low = low < 0 ? 0 : low, high = high < end ? high : end;
  return low < high ? mpg_range{low, high} : mpg_range{0, 0};
}

/* Returns the end of the keys of a batch entry. */
template <class T>
__device__ __forceinline__ int64_t mpg_end_of(const mpg_attention<T> &p, int64_t batch) {
  if (!p.lengths) return p.keys;
  int64_t end = p.lengths[batch] + (p.cached ? p.rows : 0);
  return end < p.keys ? end : p.keys;
}
/* Returns the position of row 0 among the keys. */
template <class T>
__device__ __forceinline__ int64_t mpg_first_of(const mpg_attention<T> &p, int64_t batch) {
  return p.cached ? p.lengths[batch] : p.keys - p.rows;
}

/* Returns the keys that a row may see, except for masks and segments. Both ends grow with the
 * row. */
template <class T>
__device__ __forceinline__ mpg_range mpg_keys_of(const mpg_attention<T> &p, int64_t batch,
                                                 int64_t row) {
  int64_t at = mpg_first_of(p, batch) + row, end = mpg_end_of(p, batch), high = end;
  if (row >= p.rows) return mpg_range{0, 0};
  if (p.causal)
    high = at + 1;
  else if (p.window)
    high = at + p.window;
  return mpg_range_within(p.window ? at - p.window + 1 : 0, high, end);
}
/* Returns the keys that some of the rows [first, first + count) may see. */
template <class T>
__device__ __forceinline__ mpg_range mpg_keys_of_rows(const mpg_attention<T> &p, int64_t batch,
                                                      int64_t first, int64_t count) {
  int64_t last = (first + count < p.rows ? first + count : p.rows) - 1;
  if (first > last) return mpg_range{0, 0};
  int64_t at = mpg_first_of(p, batch), end = mpg_end_of(p, batch), high = end;
  if (p.causal)
    high = at + last + 1;
  else if (p.window)
    high = at + last + p.window;
  return mpg_range_within(p.window ? at + first - p.window + 1 : 0, high, end);
}
/* Returns the keys that all rows [first, first + count) see, except for masks and segments. */
template <class T>
__device__ __forceinline__ mpg_range mpg_keys_of_all(const mpg_attention<T> &p, int64_t batch,
                                                     int64_t first, int64_t count) {
  if (first + count > p.rows) return mpg_range{0, 0};
  mpg_range low = mpg_keys_of(p, batch, first + count - 1), high = mpg_keys_of(p, batch, first);
  return low.low < high.high && low.high ? mpg_range{low.low, high.high} : mpg_range{0, 0};
}
/* Returns the rows that may see some of the keys [first, first + count). */
template <class T>
__device__ __forceinline__ mpg_range mpg_rows_of_keys(const mpg_attention<T> &p, int64_t batch,
                                                      int64_t first, int64_t count) {
  int64_t end = mpg_end_of(p, batch), last = (first + count < end ? first + count : end) - 1,
          at = mpg_first_of(p, batch), low = 0;
  if (first > last) return mpg_range{0, 0};
  if (p.causal)
    low = first - at;
  else if (p.window)
    low = first - p.window + 1 - at;
  return mpg_range_within(low, p.window ? last + p.window - at : p.rows, p.rows);
}

/* Returns the rows that see all keys [first, first + count), except for masks and segments. */
template <class T>
__device__ __forceinline__ mpg_range mpg_rows_of_all(const mpg_attention<T> &p, int64_t batch,
                                                     int64_t first, int64_t count) {
  if (first + count > mpg_end_of(p, batch)) return mpg_range{0, 0};
  mpg_range low = mpg_rows_of_keys(p, batch, first + count - 1, 1),
            high = mpg_rows_of_keys(p, batch, first, 1);
  return low.low < high.high && low.high ? mpg_range{low.low, high.high} : mpg_range{0, 0};
}

/* Returns the value added to a score: that of the mask, and -infinity for hidden keys. `at` is the
 * offset in the mask. `own` is the segment of the row, and `segments` are those of the keys. */
template <class T>
__device__ __forceinline__ mpg_compute_t<T> mpg_added(const mpg_attention<T> &p, int64_t at,
                                                      const int32_t *segments, int32_t own,
                                                      int64_t key) {
  typedef mpg_compute_t<T> C;
  C more = 0;
  if (p.mask_kind == MPG_MASK_BOOL)
    more = ((const uint8_t *)p.mask)[at] ? (C)0 : -(C)INFINITY;
  else if (p.mask_kind == MPG_MASK_FLOAT)
    more = (C)((const float *)p.mask)[at];
  else if (p.mask_kind == MPG_MASK_SAME)
    more = mpg_to<C>(((const T *)p.mask)[at]);
  return segments && segments[key] != own ? -(C)INFINITY : more;
}
template <class T>
__device__ __forceinline__ const int32_t *mpg_segments_of(const mpg_attention<T> &p,
                                                          int64_t batch) {
  return p.segments ? p.segments + batch * p.keys : NULL;
}
/* Returns the segment of a row, given those of the keys. */
template <class T>
__device__ __forceinline__ int32_t mpg_own_segment(const mpg_attention<T> &p,
                                                   const int32_t *segments, int64_t row) {
  return segments && row < p.rows ? segments[p.keys - p.rows + row] : 0;
}

/* Returns the random key of dropout. A row's weights all lie within one run of the key
 * (base/philox.h), so their random words are consecutive. */
template <class T>
__device__ __forceinline__ mpg_random_key mpg_key_of(const mpg_attention<T> &p) {
  return p.drawn ? mpg_cuda_read_key(p.drawn) : p.draw.read();
}

/* True if the tensor core kernels support the call's sizes. Alignment does not affect the choice,
 * so that it cannot change results. */
template <class T>
static inline bool mpg_attention_has_tensor(const mpg_attention<T> &p, int64_t batch) {
  return p.width <= 128 && p.value_width <= 128 && p.rows < 1 << 24 && p.keys < 1 << 24 &&
         batch * p.heads < (1ll << 31) / (p.rows + 1);
}
/* Run the tensor core kernels. For backward, p.inner is uninitialized scratch memory. */
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_bfloat16> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_bfloat16> &p, int64_t batch);

#endif
