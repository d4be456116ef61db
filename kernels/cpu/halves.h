/* Conversions between groups of 16 float16 or bfloat16 elements and floats. After inlining,
 * compilers keep the floats in registers. Written by hand because GCC does not vectorize float16
 * conversions and is slower at packing bfloat16. The vector and the scalar versions are
 * bit-identical. Stateless; any thread.
 */
#ifndef KERNELS_CPU_HALVES_H
#define KERNELS_CPU_HALVES_H

#include <string.h>

#include "kernels/common/half.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { MPG_HALVES = 16 };
#define MPG_HALVES_INLINE static inline __attribute__((always_inline, unused))

MPG_HALVES_INLINE void mpg_load_f16(const uint16_t *source, float *target) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(target, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)source)));
#elif defined(__F16C__)
  for (int i = 0; i < MPG_HALVES; i += 8)
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i))));
#else
  for (int i = 0; i < MPG_HALVES; i++) target[i] = mpg_half_to_float(source[i]);
#endif
}
MPG_HALVES_INLINE void mpg_store_f16(const float *source, uint16_t *target) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)target,
                      _mm512_cvtps_ph(_mm512_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT);
  __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(source + 8), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256((__m256i *)target, _mm256_set_m128i(high, low));
#else
  for (int i = 0; i < MPG_HALVES; i++) target[i] = mpg_float_to_half(source[i]);
#endif
}

MPG_HALVES_INLINE void mpg_load_bf16(const uint16_t *source, float *target) {
  for (int i = 0; i < MPG_HALVES; i++) target[i] = mpg_bfloat16_to_float(source[i]);
}
#if defined(__AVX2__) && !defined(__AVX512F__)
/* Rounds floats to bfloat16. The results are in the low half of each lane. The floats must be
 * results of arithmetic on halves, so NaNs need no special case (see mpg_store_computed_bf16). */
MPG_HALVES_INLINE __m256i mpg_rounded_lanes(__m256i bits) {
  __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  bits = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, even), 16);
}
/* Rounds arbitrary floats to bfloat16. The results are in the low half of each lane. A NaN remains
 * a NaN and becomes quiet. */
MPG_HALVES_INLINE __m256i mpg_bfloat16_lanes(__m256 values) {
  __m256i bits = _mm256_castps_si256(values);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_andnot_si256(nan, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_or_si256(bits, quiet), up), 16);
}
/* Stores the low half of each lane, first of `low`, then of `high`. */
MPG_HALVES_INLINE void mpg_store_lower_halves(__m256i low, __m256i high, uint16_t *target) {
  _mm256_storeu_si256((__m256i *)target,
                      _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}
#endif
MPG_HALVES_INLINE void mpg_store_bf16(const float *source, uint16_t *target) {
#if defined(__AVX512F__)
  __m512 values = _mm512_loadu_ps(source);
  __m512i bits = _mm512_castps_si512(values);
  __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256((__m256i *)target, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
#elif defined(__AVX2__)
  mpg_store_lower_halves(mpg_bfloat16_lanes(_mm256_loadu_ps(source)),
                         mpg_bfloat16_lanes(_mm256_loadu_ps(source + 8)), target);
#else
  for (int i = 0; i < MPG_HALVES; i++) target[i] = mpg_float_to_bfloat16(source[i]);
#endif
}
/* Round and store floats that are results of arithmetic on halves. A NaN among them comes from a
 * half or from the processor. Its low 16 bits are therefore 0, and rounding cannot turn it into
 * infinity. */
#if defined(__AVX512F__)
/* Rounds to bfloat16. The results are in the high half of each lane. */
MPG_HALVES_INLINE __m512i mpg_computed_lanes(const float *source) {
  __m512i bits = _mm512_loadu_si512(source);
  __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
}
#endif
MPG_HALVES_INLINE void mpg_store_computed_f16(const float *source, uint16_t *target) {
  mpg_store_f16(source, target);
}
MPG_HALVES_INLINE void mpg_store_computed_bf16(const float *source, uint16_t *target) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)target,
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(mpg_computed_lanes(source), 16)));
#elif defined(__AVX2__)
  __m256i low = _mm256_castps_si256(_mm256_loadu_ps(source)),
          high = _mm256_castps_si256(_mm256_loadu_ps(source + 8));
  mpg_store_lower_halves(mpg_rounded_lanes(low), mpg_rounded_lanes(high), target);
#else
  mpg_store_bf16(source, target);
#endif
}
/* Store floats that are exactly representable as halves, so no rounding is needed. */
MPG_HALVES_INLINE void mpg_store_exact_f16(const float *source, uint16_t *target) {
  mpg_store_f16(source, target);
}
MPG_HALVES_INLINE void mpg_store_exact_bf16(const float *source, uint16_t *target) {
#if defined(__AVX512F__)
  __m512i bits = _mm512_loadu_si512(source);
  _mm256_storeu_si256((__m256i *)target, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
#elif defined(__AVX2__)
  __m256i low = _mm256_castps_si256(_mm256_loadu_ps(source)),
          high = _mm256_castps_si256(_mm256_loadu_ps(source + 8));
  mpg_store_lower_halves(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16), target);
#else
  uint32_t bits[MPG_HALVES];
  memcpy(bits, source, sizeof bits);
  for (int i = 0; i < MPG_HALVES; i++) target[i] = (uint16_t)(bits[i] >> 16);
#endif
}

#endif
