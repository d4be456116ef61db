/* Prelude that every generated kernel includes: formulas, rounding, loads and stores. NVRTC
 * compiles it and has no system headers, so everything included here must be among the headers that
 * specialise.cu passes. */
#ifndef KERNELS_CUDA_FUSION_GENERATED_H
#define KERNELS_CUDA_FUSION_GENERATED_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
#else
#include <cuda_runtime.h>
#include <math.h>
#endif

#include "kernels/common/binary.h"
#include "kernels/common/unary.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/dropout.h"

/* Elements per thread in a group without rows, equal to the number of words in a Philox block. */
enum { MPG_GROUP_ELEMENTS = 4 };

/* --- Formulas: mpg_unary::NAME::at(x, constants), mpg_binary::NAME::at(x, y) ------------------ */
namespace mpg_unary {
#define FLOAT_ROWS(name, kind, expression_f, expression_d)        \
  struct name {                                                   \
    static MPG_MEMBER float at(float x, const float *constants) { \
      (void)constants;                                            \
      return (float)(expression_f);                               \
    }                                                             \
  };
#include "kernels/common/unary.def"
} // namespace mpg_unary
namespace mpg_binary {
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d)                  \
  struct name {                                                                    \
    static MPG_MEMBER float at(float x, float y) { return (float)(expression_f); } \
  };
#include "kernels/common/binary.def"
} // namespace mpg_binary

template <class T>
MPG_HOST_DEVICE float mpg_rounded(float x) {
  return mpg_to<float>(mpg_to<T>(x));
}

/* --- Memory access ---------------------------------------------------------------------------- */
template <class T, int N>
struct __align__(N * sizeof(T) < 16 ? N * sizeof(T) : 16) mpg_few {
  T values[N];
};

/* A place type maps the index of an element in the group's domain to its index in an operand. at(i,
 * &place) sets `place` to the operand's index for domain element i. If several domain elements
 * share an index, at() returns true for exactly one of them, which is the one that stores the
 * value. */
struct mpg_everywhere {
  static const bool whole = true;
  static __device__ __forceinline__ bool at(int64_t i, int64_t *place) {
    *place = i;
    return true;
  }
};
/* Loads domain elements [begin, begin + N) of an operand. `count` is the number of elements left in
 * the domain after `begin`, which may exceed N or be negative. Missing elements become 0. `packed`
 * means that the elements are contiguous and aligned in the operand. */
template <class T, class P, int N>
__device__ __forceinline__ void mpg_load_few(const void *memory, bool packed, int64_t begin,
                                             int count, float *to) {
  const T *data = (const T *)memory;
  if (packed && count >= N) {
    int64_t place = 0;
    P::at(begin, &place);
    mpg_few<T, N> all = ((const mpg_few<T, N> *)data)[place / N];
#pragma unroll
    for (int k = 0; k < N; k++) to[k] = mpg_to<float>(all.values[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    int64_t place = 0;
    if (k < count) P::at(begin + k, &place);
    to[k] = k < count ? mpg_to<float>(data[place]) : 0.0f;
  }
}
template <class T, class P, int N>
__device__ __forceinline__ void mpg_store_few(void *memory, bool packed, int64_t begin, int count,
                                              const float *from) {
  T *data = (T *)memory;
  if (packed && count >= N) {
    int64_t place = 0;
    mpg_few<T, N> all;
#pragma unroll
    for (int k = 0; k < N; k++) all.values[k] = mpg_to<T>(from[k]);
    if (P::at(begin, &place)) ((mpg_few<T, N> *)data)[place / N] = all;
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    int64_t place = 0;
    if (k < count && P::at(begin + k, &place)) data[place] = mpg_to<T>(from[k]);
  }
}
/* Loads the row's element of an operand that has one element per row. `begin` is the thread's first
 * element. */
template <class T, class P>
__device__ __forceinline__ float mpg_load_of_row(const void *memory, int64_t begin, int count) {
  int64_t place = 0;
  if (count > 0) P::at(begin, &place);
  return count > 0 ? mpg_to<float>(((const T *)memory)[place]) : 0.0f;
}
template <class T, class P>
__device__ __forceinline__ void mpg_store_of_row(void *memory, int64_t begin, int count,
                                                 float from) {
  int64_t place = 0;
  if (count > 0 && P::at(begin, &place)) ((T *)memory)[place] = mpg_to<T>(from);
}

/* --- Dropout: 1 if an element is kept, else 0 ------------------------------------------------- */
template <class P, int N>
__device__ __forceinline__ void mpg_draw_few(const mpg_cuda_key &from, float threshold,
                                             int64_t begin, int count, float *kept) {
  mpg_random_key key = from.read();
  uint64_t first = key.position + key.first + (uint64_t)begin;
  if (P::whole && !key.run && first % MPG_GROUP_ELEMENTS == 0) {
#pragma unroll
    for (int b = 0; b < N; b += MPG_GROUP_ELEMENTS) {
      mpg_philox_block words =
          mpg_philox(key.seed, key.call, (first + (unsigned)b) / MPG_GROUP_ELEMENTS);
#pragma unroll
      for (int k = 0; k < MPG_GROUP_ELEMENTS; k++)
        kept[b + k] = mpg_is_kept(words.value[k], (uint32_t)threshold) ? 1.0f : 0.0f;
    }
    return;
  }
  mpg_dropout_draw drawn(key);
#pragma unroll 1
  for (int k = 0; k < N && k < count; k++) {
    int64_t place = 0;
    P::at(begin + k, &place);
    float keeps = drawn.keeps((uint64_t)place, (uint32_t)threshold) ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) /* kept[k] = keeps; a run-time index would need local memory */
      if (j == k) kept[j] = keeps;
  }
}

#endif
