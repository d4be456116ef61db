/* Conversion of blocks of elements between dtypes. Kernels compute in one of four types: float
 * (also for float16 and bfloat16), double, int32_t (also for 8-bit integers and bool) and int64_t.
 * Other dtypes pass through a buffer of MPG_CPU_BLOCK elements. Conversions follow the rules of C.
 * A conversion to bool tests `!= 0`. If a float is outside an integer type's range, the result
 * depends on the processor. These functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_CPU_CONVERT_H
#define KERNELS_CPU_CONVERT_H

#include "kernels/cpu/cpu.h"
#include "kernels/common/half.h"

enum { MPG_CPU_BLOCK = 512 };

/* The types in which kernels compute. */
typedef enum mpg_compute {
  MPG_COMPUTE_F32,
  MPG_COMPUTE_F64,
  MPG_COMPUTE_I32,
  MPG_COMPUTE_I64,
  MPG_COMPUTE_COUNT
} mpg_compute;

/* Returns the narrowest compute type that holds every value of the dtype. */
static inline mpg_compute mpg_compute_of(mpg_dtype dtype) {
  switch (dtype) {
    case MPG_FLOAT32:
    case MPG_FLOAT16:
    case MPG_BFLOAT16: return MPG_COMPUTE_F32;
    case MPG_FLOAT64: return MPG_COMPUTE_F64;
    case MPG_INT64: return MPG_COMPUTE_I64;
    default: return MPG_COMPUTE_I32;
  }
}
/* Returns the dtype that stores the compute type without conversion. */
static inline mpg_dtype mpg_compute_dtype(mpg_compute compute) {
  static const mpg_dtype dtypes[MPG_COMPUTE_COUNT] = {MPG_FLOAT32, MPG_FLOAT64, MPG_INT32,
                                                      MPG_INT64};
  return dtypes[compute];
}
static inline bool mpg_compute_direct(mpg_compute compute, mpg_dtype dtype) {
  return mpg_compute_dtype(compute) == dtype;
}

typedef union mpg_block_buffer {
  float f32[MPG_CPU_BLOCK];
  double f64[MPG_CPU_BLOCK];
  int32_t i32[MPG_CPU_BLOCK];
  int64_t i64[MPG_CPU_BLOCK];
} __attribute__((aligned(64))) mpg_block_buffer;

/* Returns elements [index, index + count) of `data` in the compute type: a pointer into `data` if
 * no conversion is needed, else `buffer` with the converted elements (count <= MPG_CPU_BLOCK). */
const void *mpg_cpu_load(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index,
                         int64_t count, mpg_block_buffer *buffer) MPG_PER_ISA(mpg_cpu_load);
/* Like mpg_cpu_load, but copies any number of elements to `to`. */
void mpg_cpu_load_all(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index,
                      int64_t count, void *to) MPG_PER_ISA(mpg_cpu_load_all);
/* Writes `count` values of the compute type to elements [index, index + count) of `data`. Does
 * nothing if `values` already points there. */
void mpg_cpu_store(mpg_compute compute, mpg_dtype dtype, void *data, int64_t index, int64_t count,
                   const void *values) MPG_PER_ISA(mpg_cpu_store);
/* Convert `count` half-precision elements to float (widen) or back (narrow), on the call's
 * threads. */
void mpg_cpu_widen(const mpg_kernel_call *call, mpg_dtype dtype, const void *half, int64_t count,
                   float *wide) MPG_PER_ISA(mpg_cpu_widen);
void mpg_cpu_narrow(const mpg_kernel_call *call, mpg_dtype dtype, const float *wide, int64_t count,
                    void *half) MPG_PER_ISA(mpg_cpu_narrow);
/* Returns the address at which a kernel computes values for a later mpg_cpu_store: inside `data` if
 * its dtype needs no conversion, else `buffer`. */
static inline void *mpg_cpu_place(mpg_compute compute, mpg_dtype dtype, void *data, int64_t index,
                                  mpg_block_buffer *buffer) {
  return mpg_compute_direct(compute, dtype) ? (char *)data + index * (int64_t)mpg_dtype_size(dtype)
                                            : (void *)buffer;
}
/* Rounds `value` to `dtype` (0.1 becomes 0.09997559 in float16) and stores the result in the
 * compute type. */
void mpg_cpu_scalar_value(mpg_compute compute, mpg_dtype dtype, double value, void *result)
    MPG_PER_ISA(mpg_cpu_scalar_value);

#endif
