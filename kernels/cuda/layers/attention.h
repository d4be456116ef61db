/* Declarations that the kernels of attention share: attention.cu's for every dtype,
 * attention_tensor.cu's and attention_gradient.cu's for halves. Include in .cu files only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_H
#define KERNELS_CUDA_LAYERS_ATTENTION_H

#include "kernels/cuda/cuda.h"

template <class T>
struct mpg_place { /* elements from `data` on; rows are dense */
  T *data;
  int64_t by_batch, by_head, by_row;
};

template <class T>
struct mpg_attention {
  int64_t heads, rows, keys, width, value_width;
  mpg_place<T> query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const T *mask; /* NULL: none */
  int64_t mask_batch, mask_head, mask_row, mask_key;
  mpg_compute_t<T>
      *sums; /* of each head: the largest score of each row, then the sum of exponentials */
  mpg_compute_t<T> *inner; /* backward: <grad, output> of each row */
  mpg_compute_t<T> scale, kept_scale;
  bool causal, drops;
  mpg_cuda_key draw;
  const uint64_t *drawn; /* backward: the key on the device */
  uint32_t threshold;    /* kept when the upper 24 bits of the word are below */
};

template <class T>
__device__ __forceinline__ T *mpg_at(const mpg_place<T> &p, int64_t batch, int64_t head) {
  return p.data + batch * p.by_batch + head * p.by_head;
}

template <class T>
__device__ __forceinline__ bool mpg_sees(const mpg_attention<T> &p, int64_t row, int64_t key) {
  return row < p.rows && key < p.keys && (!p.causal || key <= row);
}

/* The random key of the weights' words. A row of weights is in one run of the whole. */
template <class T>
__device__ __forceinline__ mpg_random_key mpg_key_of(const mpg_attention<T> &p) {
  return p.drawn ? mpg_cuda_read_key(p.drawn) : p.draw.read();
}

/* Whether tensor cores have the sizes of a call. Depends on sizes alone. */
template <class T>
static inline bool mpg_attention_has_tensor(const mpg_attention<T> &p, int64_t batch) {
  return p.width <= 128 && p.value_width <= 128 && p.rows < 1 << 24 && p.keys < 1 << 24 &&
         batch * p.heads < (1ll << 31) / (p.rows + 1);
}
/* backward: p.inner is memory for its numbers. */
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_bfloat16> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_bfloat16> &p, int64_t batch);

#endif
