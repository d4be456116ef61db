/* Test-only: emulates CUDA C++ on the host, so that the host's compiler can compile kernels. See
 * cuda_runtime_api.h.
 *
 * Each thread of a block runs in a fiber (fibers.cpp), which has the thread's state (threadIdx,
 * barriers, shuffles). A host thread runs one block after another, so `__shared__` variables are
 * thread-local variables of the host thread.
 */
#ifndef HOSTCUDA_RUNTIME_H
#define HOSTCUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(n) alignas(n)
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern HOSTCUDA_SHARED thread_local uint3 threadIdx, blockIdx;
extern HOSTCUDA_SHARED thread_local dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* --- Numbers ---------------------------------------------------------------------------------- */
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline int __float_as_int(float x) {
  int bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline float __int_as_float(int bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, 8);
  return bits;
}
static inline double __longlong_as_double(long long bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
  return result;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((uint64_t)a * b) >> 32);
}

/* Excluded from code that NVRTC's stand-in compiles: like NVRTC it has no C++ library, whose
 * headers would also be slow to compile. */
#ifndef HOSTCUDA_DEVICE_ONLY
#include <cmath>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

/* --- Launching -------------------------------------------------------------------------------- */
typedef struct cudaLaunchAttribute {
  int id;
} cudaLaunchAttribute;
typedef struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
} cudaLaunchConfig_t;

cudaError_t hostcuda_launch(const cudaLaunchConfig_t *config, std::function<void()> thread);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **arguments); /* `kernel` is a cudaKernel_t */
/* True if the kernel may use `bytes` of shared memory on the current card. */
bool hostcuda_may_share(const void *kernel, size_t bytes);
template <class... P, size_t... I>
cudaError_t hostcuda_launch_values(void (*kernel)(P...), const cudaLaunchConfig_t *config,
                                   void **arguments, std::index_sequence<I...>) {
  (void)arguments;
  std::tuple<std::decay_t<P>...> values(*(std::decay_t<P> *)arguments[I]...);
  return hostcuda_launch(config, [kernel, values] { std::apply(kernel, values); });
}
template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  cudaLaunchConfig_t config = {grid, block, shared, stream, nullptr, 0};
  if (!hostcuda_may_share((const void *)kernel, shared)) return cudaErrorInvalidValue;
  return hostcuda_launch_values(kernel, &config, arguments, std::index_sequence_for<P...>());
}

#endif
/* --- Cooperation between a block's threads ---------------------------------------------------- */
HOSTCUDA_SHARED void *hostcuda_shared(void); /* the block's dynamic shared memory */
HOSTCUDA_SHARED void __syncthreads(void);
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);
HOSTCUDA_SHARED unsigned hostcuda_lane(void);
HOSTCUDA_SHARED unsigned hostcuda_ballot(unsigned mask, int predicate);
static inline void __syncwarp(unsigned mask = 0xffffffffu) { hostcuda_ballot(mask, 0); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return hostcuda_ballot(mask, predicate);
}
static inline int __any_sync(unsigned mask, int predicate) {
  return hostcuda_ballot(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return hostcuda_ballot(mask, !predicate) == 0;
}
HOSTCUDA_SHARED uint64_t hostcuda_shuffle(unsigned mask, uint64_t bits, unsigned source);
template <class T>
static inline T hostcuda_shuffle_value(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = hostcuda_shuffle(mask, bits, source);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  unsigned own = hostcuda_lane();
  return hostcuda_shuffle_value(
      mask, value, (own & ~(unsigned)(width - 1)) | ((unsigned)lane & (unsigned)(width - 1)));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  unsigned own = hostcuda_lane(), other = own ^ (unsigned)lanes;
  return hostcuda_shuffle_value(
      mask, value,
      (other & ~(unsigned)(width - 1)) == (own & ~(unsigned)(width - 1)) ? other : own);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned own = hostcuda_lane(), other = own + delta;
  return hostcuda_shuffle_value(mask, value,
                                other / (unsigned)width == own / (unsigned)width ? other : own);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned own = hostcuda_lane();
  return hostcuda_shuffle_value(mask, value, own % (unsigned)width >= delta ? own - delta : own);
}

#ifndef HOSTCUDA_DEVICE_ONLY
/* --- Memory ----------------------------------------------------------------------------------- */
template <class T>
static inline T __ldg(const T *address) {
  return *address;
}
static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T, class F>
static inline T hostcuda_update(T *address, F change) {
  T old, next;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do next = change(old);
  while (
      !__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
template <class T>
static inline T atomicAdd(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return (T)(old + value); });
}
template <class T>
static inline T atomicSub(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return (T)(old - value); });
}
template <class T>
static inline T atomicMax(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return old > value ? old : value; });
}
template <class T>
static inline T atomicMin(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return old < value ? old : value; });
}
template <class T>
static inline T atomicOr(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return (T)(old | value); });
}
template <class T>
static inline T atomicAnd(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return (T)(old & value); });
}
template <class T>
static inline T atomicExch(T *address, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T) { return value; });
}
template <class T>
static inline T atomicCAS(T *address, std::common_type_t<T> compare, std::common_type_t<T> value) {
  return hostcuda_update(address, [=](T old) { return old == compare ? value : old; });
}

template <class A, class B>
static inline std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
static inline std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
#endif
#endif

#endif
