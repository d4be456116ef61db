/* Vector operations for the templates of matrix products, in the current instruction set. V is a
 * vector of LANES elements. V_LOAD and V_STORE need no alignment. V_SET broadcasts. V_FMA(a, b, c)
 * is a * b + c, fused if the processor supports it. V_SUMS(v, to) stores the sums of the lanes of
 * v[0] to v[3]: it adds the upper half to the lower half, until one lane is left. The element type
 * is float, or double if LANES_OF_DOUBLE is defined. Has no include guard, since it is included
 * once per type. */
#if defined(__AVX__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#include <string.h>

#undef V
#undef LANES
#undef V_LOAD
#undef V_STORE
#undef V_SET
#undef V_FMA
#undef V_SUMS

#if !defined(LANES_OF_DOUBLE)
#define V_SUMS(v, to) sums_f32(v, to)
#if defined(__AVX512F__)
#define V __m512
#define LANES 16
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET(x) _mm512_set1_ps(x)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
static inline __attribute__((unused)) void sums_f32(const __m512 *v, float *to) {
  __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
                           _mm512_shuffle_f32x4(v[0], v[1], 0xee)),
         b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
                           _mm512_shuffle_f32x4(v[2], v[3], 0xee)),
         c = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  c = _mm512_add_ps(c, _mm512_permute_ps(c, 0x4e));
  c = _mm512_add_ps(c, _mm512_permute_ps(c, 0xb1));
  __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, c)));
}
#elif defined(__AVX__) && defined(__FMA__)
#define V __m256
#define LANES 8
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET(x) _mm256_set1_ps(x)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
static inline __attribute__((unused)) void sums_f32(const __m256 *v, float *to) {
  __m256 a = _mm256_add_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20),
                           _mm256_permute2f128_ps(v[0], v[1], 0x31)),
         b = _mm256_add_ps(_mm256_permute2f128_ps(v[2], v[3], 0x20),
                           _mm256_permute2f128_ps(v[2], v[3], 0x31)),
         c = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  c = _mm256_add_ps(_mm256_shuffle_ps(c, c, 0x88), _mm256_shuffle_ps(c, c, 0xdd));
  _mm_storeu_ps(to, _mm_unpacklo_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
}
#else
typedef float vector_f32 __attribute__((vector_size(16)));
static inline __attribute__((unused)) vector_f32 load_f32(const float *p) {
  vector_f32 v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_f32(float *p, vector_f32 v) { memcpy(p, &v, sizeof v); }
static inline __attribute__((unused)) void sums_f32(const vector_f32 *v, float *to) {
  for (int i = 0; i < 4; i++) to[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
}
#define V vector_f32
#define LANES 4
#define V_LOAD(p) load_f32(p)
#define V_STORE(p, v) store_f32(p, v)
#define V_SET(x) ((vector_f32){} + (float)(x))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#else
#define V_SUMS(v, to) sums_f64(v, to)
#if defined(__AVX512F__)
#define V __m512d
#define LANES 8
#define V_LOAD(p) _mm512_loadu_pd(p)
#define V_STORE(p, v) _mm512_storeu_pd(p, v)
#define V_SET(x) _mm512_set1_pd(x)
#define V_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
static inline __attribute__((unused)) void sums_f64(const __m512d *v, double *to) {
  __m512d a = _mm512_add_pd(_mm512_shuffle_f64x2(v[0], v[1], 0x44),
                            _mm512_shuffle_f64x2(v[0], v[1], 0xee)),
          b = _mm512_add_pd(_mm512_shuffle_f64x2(v[2], v[3], 0x44),
                            _mm512_shuffle_f64x2(v[2], v[3], 0xee)),
          c = _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd));
  c = _mm512_add_pd(c, _mm512_permute_pd(c, 0x55));
  __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
  _mm256_storeu_pd(to, _mm512_castpd512_pd256(_mm512_permutexvar_pd(first, c)));
}
#elif defined(__AVX__) && defined(__FMA__)
#define V __m256d
#define LANES 4
#define V_LOAD(p) _mm256_loadu_pd(p)
#define V_STORE(p, v) _mm256_storeu_pd(p, v)
#define V_SET(x) _mm256_set1_pd(x)
#define V_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
static inline __attribute__((unused)) void sums_f64(const __m256d *v, double *to) {
  __m256d a = _mm256_add_pd(_mm256_permute2f128_pd(v[0], v[1], 0x20),
                            _mm256_permute2f128_pd(v[0], v[1], 0x31)),
          b = _mm256_add_pd(_mm256_permute2f128_pd(v[2], v[3], 0x20),
                            _mm256_permute2f128_pd(v[2], v[3], 0x31)),
          c = _mm256_hadd_pd(a, b); /* v[0], v[2], v[1], v[3] */
  __m128d low = _mm256_castpd256_pd128(c), high = _mm256_extractf128_pd(c, 1);
  _mm_storeu_pd(to, _mm_unpacklo_pd(low, high));
  _mm_storeu_pd(to + 2, _mm_unpackhi_pd(low, high));
}
#else
typedef double vector_f64 __attribute__((vector_size(16)));
static inline vector_f64 load_f64(const double *p) {
  vector_f64 v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_f64(double *p, vector_f64 v) { memcpy(p, &v, sizeof v); }
static inline __attribute__((unused)) void sums_f64(const vector_f64 *v, double *to) {
  for (int i = 0; i < 4; i++) to[i] = v[i][0] + v[i][1];
}
#define V vector_f64
#define LANES 2
#define V_LOAD(p) load_f64(p)
#define V_STORE(p, v) store_f64(p, v)
#define V_SET(x) ((vector_f64){} + (double)(x))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif
