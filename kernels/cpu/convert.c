/* Converts blocks of elements between dtypes. */
#include "kernels/cpu/convert.h"

#include "kernels/common/index.h"
#include "kernels/cpu/halves.h"

/* Convert whole groups of MPG_HALVES elements, then the remaining elements one by one. */
#define HALF_LOOPS(suffix, to_float, from_float)                                                 \
  static void load_##suffix(const uint16_t *restrict source, float *restrict target,             \
                            int64_t count) {                                                     \
    int64_t i = 0;                                                                               \
    for (; i + MPG_HALVES <= count; i += MPG_HALVES) mpg_load_##suffix(source + i, target + i);  \
    for (; i < count; i++) target[i] = to_float(source[i]);                                      \
  }                                                                                              \
  static void store_##suffix(const float *restrict source, uint16_t *restrict target,            \
                             int64_t count) {                                                    \
    int64_t i = 0;                                                                               \
    for (; i + MPG_HALVES <= count; i += MPG_HALVES) mpg_store_##suffix(source + i, target + i); \
    for (; i < count; i++) target[i] = from_float(source[i]);                                    \
  }
HALF_LOOPS(f16, mpg_half_to_float, mpg_float_to_half)
HALF_LOOPS(bf16, mpg_bfloat16_to_float, mpg_float_to_bfloat16)

#define LOOP(S, T, expression)                                  \
  do {                                                          \
    const S *restrict source = from;                            \
    T *restrict target = to;                                    \
    for (int64_t i = 0; i < count; i++) target[i] = expression; \
    return;                                                     \
  } while (0)

/* Converts a dtype's elements to a compute type. */
#define LOADER(suffix, T)                                                                 \
  static void load_##suffix(mpg_dtype dtype, const void *from, void *to, int64_t count) { \
    switch (dtype) {                                                                      \
      case MPG_FLOAT32: LOOP(float, T, (T)source[i]);                                     \
      case MPG_FLOAT64: LOOP(double, T, (T)source[i]);                                    \
      case MPG_BFLOAT16: LOOP(uint16_t, T, (T)mpg_bfloat16_to_float(source[i]));          \
      case MPG_UINT8: LOOP(uint8_t, T, (T)source[i]);                                     \
      case MPG_BOOL: LOOP(uint8_t, T, (T)(source[i] != 0));                               \
      case MPG_INT8: LOOP(int8_t, T, (T)source[i]);                                       \
      case MPG_INT32: LOOP(int32_t, T, (T)source[i]);                                     \
      case MPG_INT64: LOOP(int64_t, T, (T)source[i]);                                     \
      default: return;                                                                    \
    }                                                                                     \
  }
LOADER(f32, float)
LOADER(f64, double)
LOADER(i32, int32_t)
LOADER(i64, int64_t)

/* Converts values of a compute type to a dtype. Conversions to 8 bits pass through the integer type
 * W, so that values wrap around. */
#define STORER(suffix, T, W)                                                               \
  static void store_##suffix(mpg_dtype dtype, const void *from, void *to, int64_t count) { \
    switch (dtype) {                                                                       \
      case MPG_FLOAT32: LOOP(T, float, (float)source[i]);                                  \
      case MPG_FLOAT64: LOOP(T, double, (double)source[i]);                                \
      case MPG_BFLOAT16: LOOP(T, uint16_t, mpg_float_to_bfloat16((float)source[i]));       \
      case MPG_UINT8: LOOP(T, uint8_t, (uint8_t)(W)source[i]);                             \
      case MPG_BOOL: LOOP(T, uint8_t, (uint8_t)(source[i] != 0));                          \
      case MPG_INT8: LOOP(T, int8_t, (int8_t)(W)source[i]);                                \
      case MPG_INT32: LOOP(T, int32_t, (int32_t)source[i]);                                \
      case MPG_INT64: LOOP(T, int64_t, (int64_t)source[i]);                                \
      default: return;                                                                     \
    }                                                                                      \
  }
STORER(f32, float, int32_t)
STORER(f64, double, int32_t)
STORER(i32, int32_t, int32_t)
STORER(i64, int64_t, int64_t)

static void load_block(mpg_compute compute, mpg_dtype dtype, const void *from, void *to,
                       int64_t count) {
  if (dtype == MPG_BFLOAT16 && compute == MPG_COMPUTE_F32) {
    load_bf16(from, to, count);
    return;
  }
  if (dtype == MPG_FLOAT16) {
    if (compute == MPG_COMPUTE_F32) {
      load_f16(from, to, count);
      return;
    }
    float floats[MPG_CPU_BLOCK];
    load_f16(from, floats, count);
    load_block(compute, MPG_FLOAT32, floats, to, count);
    return;
  }
  switch (compute) {
    case MPG_COMPUTE_F32: load_f32(dtype, from, to, count); return;
    case MPG_COMPUTE_F64: load_f64(dtype, from, to, count); return;
    case MPG_COMPUTE_I32: load_i32(dtype, from, to, count); return;
    default: load_i64(dtype, from, to, count); return;
  }
}

static void store_block(mpg_compute compute, mpg_dtype dtype, const void *from, void *to,
                        int64_t count) {
  if (dtype == MPG_BFLOAT16 && compute == MPG_COMPUTE_F32) {
    store_bf16(from, to, count);
    return;
  }
  if (dtype == MPG_FLOAT16) {
    if (compute == MPG_COMPUTE_F32) {
      store_f16(from, to, count);
      return;
    }
    float floats[MPG_CPU_BLOCK];
    store_block(compute, MPG_FLOAT32, from, floats, count);
    store_f16(floats, to, count);
    return;
  }
  switch (compute) {
    case MPG_COMPUTE_F32: store_f32(dtype, from, to, count); return;
    case MPG_COMPUTE_F64: store_f64(dtype, from, to, count); return;
    case MPG_COMPUTE_I32: store_i32(dtype, from, to, count); return;
    default: store_i64(dtype, from, to, count); return;
  }
}

const void *mpg_cpu_load(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index,
                         int64_t count, mpg_block_buffer *buffer) {
  const char *from = (const char *)data + index * (int64_t)mpg_dtype_size(dtype);
  if (mpg_compute_direct(compute, dtype)) return from;
  load_block(compute, dtype, from, buffer, count);
  return buffer;
}

void mpg_cpu_load_all(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index,
                      int64_t count, void *to) {
  size_t size = mpg_dtype_size(dtype), wide = mpg_dtype_size(mpg_compute_dtype(compute));
  const char *from = (const char *)data + index * (int64_t)size;
  if (mpg_compute_direct(compute, dtype)) {
    if (count > 0) memcpy(to, from, (size_t)count * size);
    return;
  }
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK)
    load_block(compute, dtype, from + done * (int64_t)size, (char *)to + done * (int64_t)wide,
               count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK);
}

void mpg_cpu_store(mpg_compute compute, mpg_dtype dtype, void *data, int64_t index, int64_t count,
                   const void *values) {
  size_t size = mpg_dtype_size(dtype);
  char *to = (char *)data + index * (int64_t)size;
  if (values == to) return;
  if (mpg_compute_direct(compute, dtype)) {
    memmove(to, values, (size_t)count * size);
    return;
  }
  /* Converts block by block, since `count` may exceed the size of store_block's buffer. */
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK) {
    int64_t n = count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK;
    store_block(compute, dtype,
                (const char *)values + done * (int64_t)mpg_dtype_size(mpg_compute_dtype(compute)),
                to + done * (int64_t)size, n);
  }
}

void mpg_cpu_scalar_value(mpg_compute compute, mpg_dtype dtype, double value, void *result) {
  if (mpg_dtype_is_float(dtype)) {
    uint64_t element;
    store_block(MPG_COMPUTE_F64, dtype, &value, &element, 1);
    load_block(compute, dtype, &element, result, 1);
  } else if (compute == MPG_COMPUTE_I32) {
    /* Clamp to the compute type's range, so that comparisons with large numbers give the right
     * result. */
    int64_t whole = mpg_whole(value);
    *(int32_t *)result = whole > INT32_MAX   ? INT32_MAX
                         : whole < INT32_MIN ? INT32_MIN
                                             : (int32_t)whole;
  } else if (compute == MPG_COMPUTE_I64) {
    *(int64_t *)result = mpg_whole(value);
  } else {
    store_block(MPG_COMPUTE_F64, mpg_compute_dtype(compute), &value, result, 1);
  }
}

typedef struct halves {
  mpg_dtype dtype;
  const void *from;
  void *to;
} halves;

static void widen_range(void *context, int64_t begin, int64_t end) {
  const halves *t = context;
  mpg_cpu_load_all(MPG_COMPUTE_F32, t->dtype, t->from, begin, end - begin, (float *)t->to + begin);
}

static void narrow_range(void *context, int64_t begin, int64_t end) {
  const halves *t = context;
  mpg_cpu_store(MPG_COMPUTE_F32, t->dtype, t->to, begin, end - begin,
                (const float *)t->from + begin);
}

void mpg_cpu_widen(const mpg_kernel_call *call, mpg_dtype dtype, const void *half, int64_t count,
                   float *wide) {
  mpg_cpu_parallel_for(call, count, 16384, widen_range, &(halves){dtype, half, wide});
}

void mpg_cpu_narrow(const mpg_kernel_call *call, mpg_dtype dtype, const float *wide, int64_t count,
                    void *half) {
  mpg_cpu_parallel_for(call, count, 16384, narrow_range, &(halves){dtype, wide, half});
}
