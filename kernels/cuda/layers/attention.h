/* Declarations shared by the attention kernels. attention.cu supports every dtype;
 * attention_tensor.cu (forward) and attention_gradient.cu (backward) use tensor cores for float16
 * and bfloat16. Include in .cu files only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_H
#define KERNELS_CUDA_LAYERS_ATTENTION_H

#include "kernels/cuda/cuda.h"

/* Location of queries, keys, values or results: an array (batch, head, row, feature) with three
 * strides. The features of a row are contiguous. */
template <class T>
struct mpg_place {
  T *data;
  int64_t by_batch, by_head, by_row;
};

template <class T>
struct mpg_attention {
  int64_t heads, rows, keys, width, value_width;
  mpg_place<T> query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const T *mask;                                     /* added to the scores; NULL for none */
  int64_t mask_batch, mask_head, mask_row, mask_key; /* strides of the mask */
  /* Softmax statistics per head: the largest score of each row, then each row's sum of
   * exponentials. */
  mpg_compute_t<T> *sums;
  mpg_compute_t<T> *inner; /* backward: inner product of grad and output, per row */
  mpg_compute_t<T> scale, kept_scale;
  bool causal, drops;
  mpg_cuda_key draw;
  const uint64_t *drawn; /* backward: the forward pass's key, in device memory */
  uint32_t threshold;    /* a weight is kept if its random word's upper 24 bits are below it */
};

template <class T>
__device__ __forceinline__ T *mpg_at(const mpg_place<T> &p, int64_t batch, int64_t head) {
  return p.data + batch * p.by_batch + head * p.by_head;
}

template <class T>
__device__ __forceinline__ bool mpg_sees(const mpg_attention<T> &p, int64_t row, int64_t key) {
  return row < p.rows && key < p.keys && (!p.causal || key <= row);
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
