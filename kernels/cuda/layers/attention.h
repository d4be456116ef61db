/* Declarations shared by the attention kernels: attention.cu for every dtype, attention_tensor.cu
 * and attention_gradient.cu for halves. Include in .cu files only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_H
#define KERNELS_CUDA_LAYERS_ATTENTION_H

#include "kernels/cuda/cuda.h"

/* Elements starting at `data`; rows are dense. */
template <class T>
struct mpg_place {
  T *data;
  int64_t by_batch, by_head, by_row;
};

template <class T>
struct mpg_attention {
  int64_t heads, rows, keys, width, value_width;
  mpg_place<T> query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const T *mask; /* NULL if none */
  int64_t mask_batch, mask_head, mask_row, mask_key;
  /* per head: the largest score of each row, then the sums of exponentials */
  mpg_compute_t<T> *sums;
  mpg_compute_t<T> *inner; /* backward: <grad, output> per row */
  mpg_compute_t<T> scale, kept_scale;
  bool causal, drops;
  mpg_cuda_key draw;
  const uint64_t *drawn; /* backward: the key on the device */
  uint32_t threshold;    /* keeps a weight if the upper 24 bits of its word are below */
};

template <class T>
__device__ __forceinline__ T *mpg_at(const mpg_place<T> &p, int64_t batch, int64_t head) {
  return p.data + batch * p.by_batch + head * p.by_head;
}

template <class T>
__device__ __forceinline__ bool mpg_sees(const mpg_attention<T> &p, int64_t row, int64_t key) {
  return row < p.rows && key < p.keys && (!p.causal || key <= row);
}

/* Returns the random key of the weights' words. A row of weights is within one run. */
template <class T>
__device__ __forceinline__ mpg_random_key mpg_key_of(const mpg_attention<T> &p) {
  return p.drawn ? mpg_cuda_read_key(p.drawn) : p.draw.read();
}

/* True if the tensor core kernels support the call's sizes. Depends on sizes only. */
template <class T>
static inline bool mpg_attention_has_tensor(const mpg_attention<T> &p, int64_t batch) {
  return p.width <= 128 && p.value_width <= 128 && p.rows < 1 << 24 && p.keys < 1 << 24 &&
         batch * p.heads < (1ll << 31) / (p.rows + 1);
}
/* For backward, p.inner is scratch. */
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call,
                                        const mpg_attention<mpg_bfloat16> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_half> &p, int64_t batch);
mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call,
                                         const mpg_attention<mpg_bfloat16> &p, int64_t batch);

#endif
