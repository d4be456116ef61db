/* Declarations shared by the attention kernels. attention.cu supports every dtype;
 * attention_tensor.cu (forward) and attention_gradient.cu (backward) use tensor cores for float16
 * and bfloat16. Include in .cu files only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_H
#define KERNELS_CUDA_LAYERS_ATTENTION_H

#include "kernels/cuda/cuda.h"
#include "op/attention/attention_call.h"

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
  int64_t first;                                     /* position of row 0 among the keys */
  /* The keys are [before, before + keys) of `all_keys`, whose lengths, segments and draws are
   * given. */
  int64_t before, all_keys;
  int64_t window; /* 0 for none */
  /* Softmax statistics per head: the largest score of each row, then each row's sum of
   * exponentials. */
  mpg_compute_t<T> *sums;
  mpg_compute_t<T> *inner; /* backward: inner product of grad and output, per row */
  mpg_compute_t<T> scale, kept_scale, softcap /* 0 for none */;
  bool causal, drops, empty_is_zero, cached;
  bool merged; /* backward: `sums` are log-sum-exps, then the inner products */
  mpg_cuda_key draw;
  const uint64_t *drawn; /* backward: the forward pass's key, in device memory */
  uint32_t threshold;    /* a weight is kept if its random word's upper 24 bits are below it */
};

template <class T>
__device__ __forceinline__ T *mpg_at(const mpg_place<T> &p, int64_t batch, int64_t head) {
  return p.data + batch * p.by_batch + head * p.by_head;
}

/* A range [low, high), which is empty if low >= high. */
template <class I>
struct mpg_range {
  I low, high;
  __device__ __forceinline__ bool has(I i) const { return i >= low && i < high; }
  __device__ __forceinline__ bool has_all(I from, I to) const { return from >= low && to <= high; }
  __device__ __forceinline__ bool has_some(I from, I to) const { return from < high && to > low; }
};

/* Keys that the rows of a batch entry may see, except for masks and segments. The ends of a row's
 * range grow with the row, and those of a key's rows with the key. */
template <class I>
struct mpg_sight {
  I first; /* position of row 0 among the keys */
  I end;   /* end of the keys */
  I rows, window;
  bool causal;

  template <class T>
  __device__ __forceinline__ mpg_sight(const mpg_attention<T> &p, I batch)
      : first((I)p.first), end((I)p.keys), rows((I)p.rows), window((I)p.window), causal(p.causal) {
    if (!p.lengths) return;
    I length = (I)(p.lengths[batch] - p.before);
    if (p.cached) {
      /* Positions far outside the cache see the same keys. The limit prevents overflow. */
      const I limit = 1 << 30;
      first = length < -limit ? -limit : length < limit ? length : limit;
      length = first + rows;
    }
    if (length < end) end = length;
  }
  __device__ __forceinline__ I key_low(I row) const {
    I low = window ? first + row - window + 1 : 0;
    return low < 0 ? 0 : low;
  }
  __device__ __forceinline__ I key_high(I row) const {
    I high = causal ? first + row + 1 : window ? first + row + window : end;
    return high < end ? high : end;
  }
  __device__ __forceinline__ I row_low(I key) const {
    I low = causal ? key - first : window ? key - first - window + 1 : 0;
    return low < 0 ? 0 : low;
  }
  __device__ __forceinline__ I row_high(I key) const {
    I high = window ? key - first + window : rows;
    return high < rows ? high : rows;
  }
  /* Returns the keys that a row sees. */
  __device__ __forceinline__ mpg_range<I> keys(I row) const {
    return row < rows ? mpg_range<I>{key_low(row), key_high(row)} : mpg_range<I>{0, 0};
  }
  /* Returns the keys that some of the rows [from, to) see. */
  __device__ __forceinline__ mpg_range<I> keys_of_some(I from, I to) const {
    if (to > rows) to = rows;
    return from < to ? mpg_range<I>{key_low(from), key_high(to - 1)} : mpg_range<I>{0, 0};
  }
  /* Returns the keys that all rows [from, to) see. */
  __device__ __forceinline__ mpg_range<I> keys_of_all(I from, I to) const {
    return to <= rows ? mpg_range<I>{key_low(to - 1), key_high(from)} : mpg_range<I>{0, 0};
  }
  /* Returns the rows that see a key. */
  __device__ __forceinline__ mpg_range<I> rows_of(I key) const {
    return key < end ? mpg_range<I>{row_low(key), row_high(key)} : mpg_range<I>{0, 0};
  }
  /* Returns the rows that see some of the keys [from, to). */
  __device__ __forceinline__ mpg_range<I> rows_of_some(I from, I to) const {
    if (to > end) to = end;
    return from < to ? mpg_range<I>{row_low(from), row_high(to - 1)} : mpg_range<I>{0, 0};
  }
  /* Returns the rows that see all keys [from, to). */
  __device__ __forceinline__ mpg_range<I> rows_of_all(I from, I to) const {
    return to <= end ? mpg_range<I>{row_low(to - 1), row_high(from)} : mpg_range<I>{0, 0};
  }
};

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
  return p.segments ? p.segments + batch * p.all_keys + p.before : NULL;
}
/* Returns the segment of a row, given those of the keys. */
template <class T>
__device__ __forceinline__ int32_t mpg_own_segment(const mpg_attention<T> &p,
                                                   const int32_t *segments, int64_t row) {
  return segments && row < p.rows ? segments[p.first + row] : 0;
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
