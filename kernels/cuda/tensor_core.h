/* Products of small matrices with a warp's tensor cores (mma.m16n8k16): products of 16-bit floats
 * are summed in float32. Needs compute capability 8.0 or newer. The host emulation (tests/hostcuda)
 * computes plain sums with the same layout. Include in .cu files only.
 *
 * Lane l has group = l / 4 and pair = l % 4. It holds the elements (row, column) listed below. A
 * word of a or b packs two adjacent elements, of which the first is listed:
 *   a (16, 16): a[0] (group, 2 pair), a[1] (group + 8, 2 pair), a[2] (group, 2 pair + 8),
 *               a[3] (group + 8, 2 pair + 8), each packed with the next column
 *   b (16, 8):  b[0] (2 pair, group), b[1] (2 pair + 8, group), each packed with the next row
 *   c (16, 8):  c[0] (group, 2 pair), c[1] (group, 2 pair + 1), c[2] and c[3]: 8 rows below
 */
#ifndef KERNELS_CUDA_TENSOR_CORE_H
#define KERNELS_CUDA_TENSOR_CORE_H

#include "kernels/cuda/cuda.h"

/* Rounds two adjacent elements to 16 bits and packs them, `low` in the low 16 bits. */
__device__ __forceinline__ uint32_t mpg_pair_of(const mpg_half *, float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (uint32_t)mpg_to<mpg_half>(low).bits | (uint32_t)mpg_to<mpg_half>(high).bits << 16;
#endif
}
__device__ __forceinline__ uint32_t mpg_pair_of(const mpg_bfloat16 *, float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (uint32_t)mpg_to<mpg_bfloat16>(low).bits | (uint32_t)mpg_to<mpg_bfloat16>(high).bits << 16;
#endif
}

MPG_HOST_DEVICE constexpr bool mpg_is_bfloat16(const mpg_half *) { return false; }
MPG_HOST_DEVICE constexpr bool mpg_is_bfloat16(const mpg_bfloat16 *) { return true; }

#ifndef __CUDA_ARCH__
template <class T>
static inline float mpg_half_of_pair(uint32_t pair, int which) {
  T value;
  value.bits = (uint16_t)(which ? pair >> 16 : pair);
  return mpg_to<float>(value);
}
/* Returns a pointer to lane `lane`'s copy of the variable `own`. The pointer is valid until that
 * lane passes the warp's next synchronization. */
template <class T>
static __device__ inline const T *mpg_of_lane(const T *own, int lane) {
  return (const T *)(uintptr_t)__shfl_sync(0xffffffffu, (unsigned long long)(uintptr_t)own, lane);
}
#endif

/* Computes c += a b. */
template <class T>
__device__ __forceinline__ void mpg_multiply_add(float *c, const uint32_t *a, const uint32_t *b) {
#ifdef __CUDA_ARCH__
  if (mpg_is_bfloat16((const T *)NULL))
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  /* Words of a and b in the lanes that hold the rows and columns of this lane's elements of c. */
  const uint32_t *as[4], *bs[8];
  uint32_t own_a[4] = {a[0], a[1], a[2], a[3]}, own_b[2] = {b[0], b[1]};
  int group = (int)(threadIdx.x & 31) / 4, pair = (int)(threadIdx.x & 31) % 4;
  for (int k = 0; k < 4; k++) as[k] = mpg_of_lane(own_a, group * 4 + k);
  for (int k = 0; k < 8; k++) bs[k] = mpg_of_lane(own_b, pair * 8 + k);
  for (int i = 0; i < 4; i++) {
    int row = i / 2, column = i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; k++)
      sum += mpg_half_of_pair<T>(as[k % 8 / 2][row + k / 8 * 2], k % 2) *
             mpg_half_of_pair<T>(bs[column * 4 + k % 8 / 2][k / 8], k % 2);
    c[i] = sum;
  }
  __syncwarp();
#endif
}

/* Loads four (8, 8) matrices of 16-bit elements from shared memory. Lane l passes the 16-byte
 * aligned address of row l % 8 of matrix l / 8. fragment[m] receives two elements of matrix m:
 * those in row `group` and columns 2 pair and 2 pair + 1. If TRANSPOSED, they are in column `group`
 * and rows 2 pair and 2 pair + 1. */
template <bool TRANSPOSED, class T>
__device__ __forceinline__ void mpg_load_matrices(uint32_t *fragment, const T *row) {
#ifdef __CUDA_ARCH__
  uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(address)
                 : "memory");
#else
  int group = (int)(threadIdx.x & 31) / 4, pair = (int)(threadIdx.x & 31) % 4;
  for (int m = 0; m < 4; m++) {
    const T *first = mpg_of_lane(row, m * 8 + (TRANSPOSED ? 2 * pair : group)),
            *second = TRANSPOSED ? mpg_of_lane(row, m * 8 + 2 * pair + 1) : first;
    fragment[m] = (uint32_t)first[TRANSPOSED ? group : 2 * pair].bits |
                  (uint32_t)second[TRANSPOSED ? group : 2 * pair + 1].bits << 16;
  }
  __syncwarp();
#endif
}

/* Loads a (16, 16) matrix at `from`, with rows `pitch` apart, as operand a. */
template <class T>
__device__ __forceinline__ void mpg_load_a(uint32_t *a, const T *from, int pitch) {
  int lane = threadIdx.x & 31;
  mpg_load_matrices<false>(a, from + (lane & 15) * pitch + (lane >> 4) * 8);
}
/* Loads two operands, b[0..1] and b[2..3], from a transposed (16, 16) matrix at `from`: rows 0 to 7
 * of the matrix are the columns of the first operand, rows 8 to 15 those of the second. */
template <class T>
__device__ __forceinline__ void mpg_load_b_transposed(uint32_t *b, const T *from, int pitch) {
  int lane = threadIdx.x & 31;
  mpg_load_matrices<false>(b, from + ((lane & 7) + (lane >> 4) * 8) * pitch + (lane >> 3 & 1) * 8);
}
/* Loads two operands, b[0..1] and b[2..3], from a (16, 16) matrix at `from`: columns 0 to 7 are the
 * first operand, columns 8 to 15 the second. */
template <class T>
__device__ __forceinline__ void mpg_load_b(uint32_t *b, const T *from, int pitch) {
  int lane = threadIdx.x & 31;
  mpg_load_matrices<true>(b, from + (lane & 15) * pitch + (lane >> 4) * 8);
}

#endif
