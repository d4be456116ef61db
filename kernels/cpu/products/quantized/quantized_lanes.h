/* Vector operations of products with packed weights, in the current instruction set. V and LANES
 * are those of lanes.h for float, and VI is a vector of LANES int32.
 *   VI_BYTES(p), VI_SIGNED_BYTES(p)  LANES bytes from p, extended to int32
 *   VI_WORDS(p)                      4 * LANES bytes from p
 *   VI_SHIFT(v, n)                   logical shift to the right
 *   VI_AND(v, n)                     v & n
 *   V_FROM(v)                        conversion to float
 *   V_MUL, V_ADD
 *   TABLE, TABLE_OF(values), V_LOOKUP(table, v)
 *                                    values[v & 15] for 16 floats
 */
#ifndef KERNELS_CPU_PRODUCTS_QUANTIZED_LANES_H
#define KERNELS_CPU_PRODUCTS_QUANTIZED_LANES_H

#if defined(__AVX512F__)
#define VI __m512i
#define VI_BYTES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define VI_SIGNED_BYTES(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define VI_WORDS(p) _mm512_loadu_si512(p)
#define VI_SHIFT(v, n) _mm512_srli_epi32(v, n)
#define VI_AND(v, n) _mm512_and_si512(v, _mm512_set1_epi32(n))
#define VI_OR(a, b) _mm512_or_si512(a, b)
#define VI_LEFT(v, n) _mm512_slli_epi32(v, n)
#define V_FROM(v) _mm512_cvtepi32_ps(v)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define TABLE __m512
#define TABLE_OF(values) _mm512_loadu_ps(values)
#define V_LOOKUP(table, v) _mm512_permutexvar_ps(v, table)
#elif defined(__AVX2__) && defined(__FMA__)
#define VI __m256i
#define VI_BYTES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define VI_SIGNED_BYTES(p) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define VI_WORDS(p) _mm256_loadu_si256((const __m256i *)(p))
#define VI_SHIFT(v, n) _mm256_srli_epi32(v, n)
#define VI_AND(v, n) _mm256_and_si256(v, _mm256_set1_epi32(n))
#define VI_OR(a, b) _mm256_or_si256(a, b)
#define VI_LEFT(v, n) _mm256_slli_epi32(v, n)
#define V_FROM(v) _mm256_cvtepi32_ps(v)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_ADD(a, b) _mm256_add_ps(a, b)
typedef struct table_halves {
  __m256 low, high;
} table_halves;
#define TABLE table_halves
#define TABLE_OF(values) \
  (table_halves) { _mm256_loadu_ps(values), _mm256_loadu_ps((values) + 8) }
/* Bit 3 of each lane selects the half of the table; blendv tests the sign bit. */
#define V_LOOKUP(table, v)                                    \
  _mm256_blendv_ps(_mm256_permutevar8x32_ps((table).low, v),  \
                   _mm256_permutevar8x32_ps((table).high, v), \
                   _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)))
#else
typedef uint32_t vector_u32 __attribute__((vector_size(16)));
typedef int32_t vector_i32 __attribute__((vector_size(16)));
static inline vector_u32 load_words(const void *p) {
  vector_u32 v;
  memcpy(&v, p, sizeof v);
  return v;
}
#define VI vector_u32
#define VI_BYTES(p) ((vector_u32){(p)[0], (p)[1], (p)[2], (p)[3]})
#define VI_SIGNED_BYTES(p)                                                                    \
  ((vector_u32){(uint32_t)(int8_t)(p)[0], (uint32_t)(int8_t)(p)[1], (uint32_t)(int8_t)(p)[2], \
                (uint32_t)(int8_t)(p)[3]})
#define VI_WORDS(p) load_words(p)
#define VI_SHIFT(v, n) ((v) >> (n))
#define VI_AND(v, n) ((v) & (uint32_t)(n))
#define VI_OR(a, b) ((a) | (b))
#define VI_LEFT(v, n) ((v) << (n))
#define V_FROM(v) __builtin_convertvector((vector_i32)(v), vector_f32)
#define V_MUL(a, b) ((a) * (b))
#define V_ADD(a, b) ((a) + (b))
#define TABLE const float *
#define TABLE_OF(values) (values)
#define V_LOOKUP(table, v)                                                        \
  ((vector_f32){(table)[(v)[0] & 15], (table)[(v)[1] & 15], (table)[(v)[2] & 15], \
                (table)[(v)[3] & 15]})
#endif

#endif
