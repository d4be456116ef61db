#include "kernels/cpu/convert.h"

#include "kernels/common/index.h"

/* By hand: GCC does not vectorise conversions of float16, and takes longer to pack bfloat16. Vector and scalar forms give the same bits. */
static void halves_to_floats(const uint16_t *restrict source, float *restrict target, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(target + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(source + i))));
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i))));
#endif
  for (; i < count; i++) target[i] = mpg_half_to_float(source[i]);
}

static void floats_to_halves(const float *restrict source, uint16_t *restrict target, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256((__m256i *)(target + i), _mm512_cvtps_ph(_mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  for (; i + 16 <= count; i += 16) { /* stored together: half the stores */
    __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(source + i + 8), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256((__m256i *)(target + i), _mm256_set_m128i(high, low));
  }
#endif
  for (; i < count; i++) target[i] = mpg_float_to_half(source[i]);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
static inline __m256i bfloat16_of(__m256 values) { /* in the lower half of each lane */
  __m256i bits = _mm256_castps_si256(values);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_andnot_si256(nan, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_or_si256(bits, quiet), up), 16);
}
#endif
static void floats_to_bfloat16s(const float *restrict source, uint16_t *restrict target, int64_t count) {
  int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    __m256i low = bfloat16_of(_mm256_loadu_ps(source + i)), high = bfloat16_of(_mm256_loadu_ps(source + i + 8));
    _mm256_storeu_si256((__m256i *)(target + i), _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
  }
#endif
  for (; i < count; i++) target[i] = mpg_float_to_bfloat16(source[i]);
}

#define LOOP(S, T, expression)                                  \
  do {                                                          \
    const S *restrict source = from;                            \
    T *restrict target = to;                                    \
    for (int64_t i = 0; i < count; i++) target[i] = expression; \
    return;                                                     \
  } while (0)

/* From a dtype's elements to a compute type. */
#define LOADER(suffix, T)                                                                  \
  static void load_##suffix(mpg_dtype dtype, const void *from, void *to, int64_t count) { \
    switch (dtype) {                                                                       \
      case MPG_FLOAT32: LOOP(float, T, (T)source[i]);                                      \
      case MPG_FLOAT64: LOOP(double, T, (T)source[i]);                                     \
      case MPG_BFLOAT16: LOOP(uint16_t, T, (T)mpg_bfloat16_to_float(source[i]));           \
      case MPG_UINT8: LOOP(uint8_t, T, (T)source[i]);                                      \
      case MPG_BOOL: LOOP(uint8_t, T, (T)(source[i] != 0));                                \
      case MPG_INT8: LOOP(int8_t, T, (T)source[i]);                                        \
      case MPG_INT32: LOOP(int32_t, T, (T)source[i]);                                      \
      case MPG_INT64: LOOP(int64_t, T, (T)source[i]);                                      \
      default: return;                                                                     \
    }                                                                                      \
  }
LOADER(f32, float)
LOADER(f64, double)
LOADER(i32, int32_t)
LOADER(i64, int64_t)

/* And back. `W` is the integer that values pass through on their way to 8 bits, so that they wrap around. */
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

static void load_block(mpg_compute compute, mpg_dtype dtype, const void *from, void *to, int64_t count) {
  if (dtype == MPG_FLOAT16) {
    if (compute == MPG_COMPUTE_F32) {
      halves_to_floats(from, to, count);
      return;
    }
    float floats[MPG_CPU_BLOCK];
    halves_to_floats(from, floats, count);
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

static void store_block(mpg_compute compute, mpg_dtype dtype, const void *from, void *to, int64_t count) {
  if (dtype == MPG_BFLOAT16 && compute == MPG_COMPUTE_F32) {
    floats_to_bfloat16s(from, to, count);
    return;
  }
  if (dtype == MPG_FLOAT16) {
    if (compute == MPG_COMPUTE_F32) {
      floats_to_halves(from, to, count);
      return;
    }
    float floats[MPG_CPU_BLOCK];
    store_block(compute, MPG_FLOAT32, from, floats, count);
    floats_to_halves(floats, to, count);
    return;
  }
  switch (compute) {
    case MPG_COMPUTE_F32: store_f32(dtype, from, to, count); return;
    case MPG_COMPUTE_F64: store_f64(dtype, from, to, count); return;
    case MPG_COMPUTE_I32: store_i32(dtype, from, to, count); return;
    default: store_i64(dtype, from, to, count); return;
  }
}

const void *mpg_cpu_load(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index, int64_t count, mpg_block_buffer *buffer) {
  const char *from = (const char *)data + index * (int64_t)mpg_dtype_size(dtype);
  if (mpg_compute_direct(compute, dtype)) return from;
  load_block(compute, dtype, from, buffer, count);
  return buffer;
}

void mpg_cpu_load_all(mpg_compute compute, mpg_dtype dtype, const void *data, int64_t index, int64_t count, void *to) {
  size_t size = mpg_dtype_size(dtype), wide = mpg_dtype_size(mpg_compute_dtype(compute));
  const char *from = (const char *)data + index * (int64_t)size;
  if (mpg_compute_direct(compute, dtype)) {
    if (count > 0) memcpy(to, from, (size_t)count * size);
    return;
  }
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK)
    load_block(compute, dtype, from + done * (int64_t)size, (char *)to + done * (int64_t)wide, count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK);
}

void mpg_cpu_store(mpg_compute compute, mpg_dtype dtype, void *data, int64_t index, int64_t count, const void *values) {
  size_t size = mpg_dtype_size(dtype);
  char *to = (char *)data + index * (int64_t)size;
  if (values == to) return;
  if (mpg_compute_direct(compute, dtype)) {
    memmove(to, values, (size_t)count * size);
    return;
  }
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK) { /* any count: the sources need not be one block */
    int64_t n = count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK;
    store_block(compute, dtype, (const char *)values + done * (int64_t)mpg_dtype_size(mpg_compute_dtype(compute)), to + done * (int64_t)size, n);
  }
}

void mpg_cpu_scalar(mpg_compute compute, mpg_dtype dtype, double value, void *result) {
  if (mpg_dtype_is_float(dtype)) {
    uint64_t element;
    store_block(MPG_COMPUTE_F64, dtype, &value, &element, 1);
    load_block(compute, dtype, &element, result, 1);
  } else if (compute == MPG_COMPUTE_I32) { /* within the range of what is computed in, so that comparisons with large numbers hold */
    int64_t whole = mpg_whole(value);
    *(int32_t *)result = whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : (int32_t)whole;
  } else if (compute == MPG_COMPUTE_I64) {
    *(int64_t *)result = mpg_whole(value);
  } else {
    store_block(MPG_COMPUTE_F64, mpg_compute_dtype(compute), &value, result, 1);
  }
}
