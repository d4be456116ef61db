/* Vectorized loads and stores of a thread's adjacent elements: 16 bytes at a time if alignment
 * allows, else one by one with the same results. Include in .cu files only. */
#ifndef KERNELS_CUDA_NEIGHBOURS_H
#define KERNELS_CUDA_NEIGHBOURS_H

#include "kernels/cuda/cuda.h"

/* Returns one float, or two values rounded to a 16-bit type, as a 4-byte word. The first argument
 * only selects the type. */
__device__ __forceinline__ uint32_t mpg_word_of(const float *, const float *value) {
  return mpg_float_bits(*value);
}
template <class T>
__device__ __forceinline__ uint32_t mpg_word_of(const T *, const float *values) {
  return mpg_halves<T>(values[0], values[1]);
}

/* Rounds all N values to T if T is a 16-bit type (N must be even). Does nothing for other types. */
template <class T, class C, int N>
__device__ __forceinline__ void mpg_round_all(C (&values)[N]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int k = 0; k + 1 < N; k += 2) {
      uint32_t both = mpg_halves<T>(values[k], values[k + 1]);
      uint16_t bits[2] = {(uint16_t)both, (uint16_t)(both >> 16)};
      T halves[2];
      memcpy(halves, bits, sizeof bits);
      values[k] = mpg_to<float>(halves[0]);
      values[k + 1] = mpg_to<float>(halves[1]);
    }
  }
}

/* N adjacent elements. If FULL, all are loaded, 16 bytes at a time. Otherwise only the first `live`
 * are loaded, one by one, and the rest are zero. */
template <class T, int N, bool FULL>
struct mpg_neighbours {
  enum { EACH = mpg_pack<T>::COUNT < N ? (int)mpg_pack<T>::COUNT : N, PACKS = N / EACH };
  mpg_pack<T> packs[PACKS];

  __device__ __forceinline__ void load(const T *from, int live) {
#pragma unroll
    for (int p = 0; p < PACKS; p++)
      if (FULL) {
        packs[p] = ((const mpg_pack<T> *)from)[p];
      } else {
#pragma unroll
        for (int k = 0; k < EACH; k++)
          packs[p].values[k] = p * EACH + k < live ? from[p * EACH + k] : T();
      }
  }
  template <class C>
  __device__ __forceinline__ C get(int k) const {
    return mpg_to<C>(packs[k / EACH].values[k % EACH]);
  }
  template <class C>
  __device__ __forceinline__ void get(C (&values)[N]) const {
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = get<C>(k);
  }
};

/* Stores values to adjacent elements: all N if FULL, otherwise only the first `live`. */
template <bool FULL, int N, class T, class C>
__device__ __forceinline__ void mpg_store(T *to, int live, const C (&values)[N]) {
  if constexpr (FULL) {
    enum { PER_WORD = 4 / sizeof(T), PACK = mpg_pack<T>::COUNT };
#pragma unroll
    for (int p = 0; p < N; p += PACK) {
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        words[k] = mpg_word_of((const T *)NULL, &values[p + k * PER_WORD]);
      mpg_store_words(to + p, words);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; k++)
      if (k < live) to[k] = mpg_to<T>(values[k]);
  }
}

#endif
