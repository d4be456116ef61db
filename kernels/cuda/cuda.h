/* Declarations shared by GPU kernels (.cu files): kernel interface, launches, element types, blocks
 * and warps.
 *
 * A kernel of the op table is a host function that launches device kernels on call->stream and
 * returns without waiting. The host function must not read arrays, which are in device memory. See
 * docs/cuda.md for how to write one. Contraction to fused multiply-add is off (--fmad=false), so
 * that results do not depend on the surrounding code; call fmaf if you need it. Use only features
 * that tests/hostcuda emulates, since CI has no GPU.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <cuda_runtime.h>
#include <math.h>

#include "base/atomic.h"
extern "C" {
#include "base/memory.h"
#include "kernels/common/view.h"
#include "kernels/cuda/runtime/runtime.h"
#include "op/fused.h"
}
#include "kernels/cuda/block.h"
#include "kernels/cuda/random_key.h"

/* Declares all kernels, so that their definitions in .cu files have C linkage. */
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  extern "C" mpg_status mpg_cuda_##kernel(const mpg_kernel_call *);
#include "op/ops.def"
#undef MPG_OP_ROW

/* --- Launching -------------------------------------------------------------------------------- */
/* mpg_cuda_launch(call, kernel<...>, blocks, threads, shared bytes, arguments...) launches a kernel
 * on the call's stream. Does nothing for 0 blocks. */
template <class... P>
static cudaError_t mpg_cuda_launch_values(void (*kernel)(P...), dim3 grid, dim3 block,
                                          size_t shared, cudaStream_t stream, P... values) {
  void *pointers[] = {(void *)&values..., NULL};
  return cudaLaunchKernel(kernel, grid, block, pointers, shared, stream);
}
template <class... P, class... A>
static mpg_status mpg_cuda_launch(const mpg_kernel_call *call, void (*kernel)(P...), dim3 grid,
                                  dim3 block, size_t shared, A... arguments) {
  if (!grid.x || !grid.y || !grid.z) return MPG_OK;
  if (shared > 48 * 1024) MPG_TRY(mpg_cuda_allow_shared((const void *)kernel, shared));
  return mpg_cuda_check(mpg_cuda_launch_values<P...>(kernel, grid, block, shared,
                                                     (cudaStream_t)call->stream, (P)arguments...),
                        "a kernel launch");
}

/* Returns the number of blocks for `count` items if a block processes `per_block` items (by default
 * one per thread). The result is capped at the grid limit, so a kernel whose count may be larger
 * must iterate (MPG_CUDA_STRIDE). */
static inline unsigned mpg_cuda_blocks(int64_t count, int64_t per_block = MPG_CUDA_THREADS) {
  int64_t blocks = (count + per_block - 1) / per_block;
  return (unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff);
}
#define MPG_CUDA_INDEX ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define MPG_CUDA_STRIDE ((int64_t)gridDim.x * blockDim.x)

/* --- Clearing and copying device memory, in stream order -------------------------------------- */
static inline mpg_status mpg_cuda_zero(const mpg_kernel_call *call, void *memory, size_t bytes) {
  return bytes ? mpg_cuda_check(cudaMemsetAsync(memory, 0, bytes, (cudaStream_t)call->stream),
                                "cudaMemsetAsync")
               : MPG_OK;
}
static inline mpg_status mpg_cuda_zero(const mpg_kernel_call *call, const mpg_view *view) {
  return mpg_cuda_zero(call, view->data, bytes_of(view));
}
/* Copies `bytes` bytes within device memory. Does nothing if both addresses are equal. */
static inline mpg_status mpg_cuda_copy(const mpg_kernel_call *call, const void *from, void *to,
                                       size_t bytes) {
  if (!bytes || from == to) return MPG_OK;
  return mpg_cuda_check(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)call->stream),
      "cudaMemcpyAsync");
}
/* Copies a view to another view of equal shape and dtype. */
static inline mpg_status mpg_cuda_copy(const mpg_kernel_call *call, const mpg_view *from,
                                       const mpg_view *to) {
  return mpg_cuda_copy(call, from->data, to->data, bytes_of(from));
}

/* Returns the call's random key as a kernel argument. The choice and number of launches must not
 * depend on the key's value, since captured work is replayed with different keys. */
static inline mpg_cuda_key mpg_cuda_key_of(const mpg_kernel_call *call) {
  return {call->random, call->random_at};
}

/* Stores the call's random key in device memory as (seed, call, position, run, stride), so that the
 * backward pass can repeat the draw. In random_keys.cu. */
mpg_status mpg_cuda_write_key(const mpg_kernel_call *call, uint64_t *out);

/* --- Elements whose dtype is known only at run time ------------------------------------------- */
template <class C>
MPG_HOST_DEVICE C mpg_load_any(mpg_dtype dtype, const void *data, int64_t i) {
  switch (dtype) {
    case MPG_FLOAT32: return mpg_to<C>(((const float *)data)[i]);
    case MPG_FLOAT64: return mpg_to<C>(((const double *)data)[i]);
    case MPG_FLOAT16: return mpg_to<C>(((const mpg_half *)data)[i]);
    case MPG_BFLOAT16: return mpg_to<C>(((const mpg_bfloat16 *)data)[i]);
    case MPG_UINT8: return mpg_to<C>(((const uint8_t *)data)[i]);
    case MPG_INT8: return mpg_to<C>(((const int8_t *)data)[i]);
    case MPG_INT32: return mpg_to<C>(((const int32_t *)data)[i]);
    case MPG_INT64: return mpg_to<C>(((const int64_t *)data)[i]);
    default: return mpg_to<C>(((const mpg_boolean *)data)[i]);
  }
}
template <class C>
MPG_HOST_DEVICE void mpg_store_any(mpg_dtype dtype, void *data, int64_t i, C value) {
  switch (dtype) {
    case MPG_FLOAT32: ((float *)data)[i] = mpg_to<float>(value); break;
    case MPG_FLOAT64: ((double *)data)[i] = mpg_to<double>(value); break;
    case MPG_FLOAT16: ((mpg_half *)data)[i] = mpg_to<mpg_half>(value); break;
    case MPG_BFLOAT16: ((mpg_bfloat16 *)data)[i] = mpg_to<mpg_bfloat16>(value); break;
    case MPG_UINT8: ((uint8_t *)data)[i] = mpg_to<uint8_t>(value); break;
    case MPG_INT8: ((int8_t *)data)[i] = mpg_to<int8_t>(value); break;
    case MPG_INT32: ((int32_t *)data)[i] = mpg_to<int32_t>(value); break;
    case MPG_INT64: ((int64_t *)data)[i] = mpg_to<int64_t>(value); break;
    default: ((mpg_boolean *)data)[i] = mpg_to<mpg_boolean>(value); break;
  }
}

/* Dispatch on a dtype: MPG_CUDA_DTYPE(dtype, T, statement using T) for all dtypes,
 * MPG_CUDA_FLOAT_DTYPE for floats only. */
#define MPG_CUDA_CASE_(number, type, T, ...) \
  case number: {                             \
    typedef type T;                          \
    __VA_ARGS__;                             \
    break;                                   \
  }
#define MPG_CUDA_FLOATS_(T, ...)                        \
  MPG_CUDA_CASE_(MPG_FLOAT32, float, T, __VA_ARGS__)    \
  MPG_CUDA_CASE_(MPG_FLOAT64, double, T, __VA_ARGS__)   \
  MPG_CUDA_CASE_(MPG_FLOAT16, mpg_half, T, __VA_ARGS__) \
  MPG_CUDA_CASE_(MPG_BFLOAT16, mpg_bfloat16, T, __VA_ARGS__)
#define MPG_CUDA_FLOAT_DTYPE(dtype, T, ...) \
  switch (dtype) {                          \
    MPG_CUDA_FLOATS_(T, __VA_ARGS__)        \
    default: break;                         \
  }
#define MPG_CUDA_DTYPE(dtype, T, ...)                     \
  switch (dtype) {                                        \
    MPG_CUDA_FLOATS_(T, __VA_ARGS__)                      \
    MPG_CUDA_CASE_(MPG_UINT8, uint8_t, T, __VA_ARGS__)    \
    MPG_CUDA_CASE_(MPG_INT8, int8_t, T, __VA_ARGS__)      \
    MPG_CUDA_CASE_(MPG_INT32, int32_t, T, __VA_ARGS__)    \
    MPG_CUDA_CASE_(MPG_INT64, int64_t, T, __VA_ARGS__)    \
    MPG_CUDA_CASE_(MPG_BOOL, mpg_boolean, T, __VA_ARGS__) \
    default: break;                                       \
  }
/* Rest of a kernel function for floats: returns function<T, C>(...) for the dtype's type T and the
 * type C in which it is computed. */
#define MPG_CUDA_RUN_FLOAT(dtype, function, ...)                                    \
  MPG_CUDA_FLOAT_DTYPE(dtype, T, return function<T, mpg_compute_t<T>>(__VA_ARGS__)) \
  return MPG_OK
/* Dispatches on the element size, for kernels that only move elements. T is uint8_t, uint16_t,
 * uint32_t or uint64_t. */
#define MPG_CUDA_SIZE(size, T, ...)             \
  switch (size) {                               \
    MPG_CUDA_CASE_(1, uint8_t, T, __VA_ARGS__)  \
    MPG_CUDA_CASE_(2, uint16_t, T, __VA_ARGS__) \
    MPG_CUDA_CASE_(4, uint32_t, T, __VA_ARGS__) \
    default: {                                  \
      typedef uint64_t T;                       \
      __VA_ARGS__;                              \
      break;                                    \
    }                                           \
  }

/* --- 16 bytes at a time ----------------------------------------------------------------------- */
template <class T>
struct __align__(16) mpg_pack { /* loaded or stored with one instruction */
  enum { COUNT = 16 / sizeof(T) };
  T values[COUNT];
};
/* Stores 16 bytes with one instruction. nvcc may split the assignment of a struct into several. */
__device__ __forceinline__ void mpg_store_words(void *to, const uint32_t (&words)[4]) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
               : "memory");
#else
  memcpy(to, words, sizeof words);
#endif
}
static inline bool mpg_cuda_aligned(const void *address) { return ((uintptr_t)address & 15) == 0; }

#endif
