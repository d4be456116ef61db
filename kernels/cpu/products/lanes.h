/* Vector operations for the templates of matrix products, in the current instruction set. V is a
 * vector of LANES elements. V_LOAD and V_STORE need no alignment. V_SET broadcasts. V_FMA(a, b, c)
 * is a * b + c, fused if the processor supports it. The element type is float, or double if
 * LANES_OF_DOUBLE is defined. Has no include guard, since it is included once per type. */
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

#if !defined(LANES_OF_DOUBLE)
#if defined(__AVX512F__)
#define V __m512
#define LANES 16
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET(x) _mm512_set1_ps(x)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif defined(__AVX__) && defined(__FMA__)
#define V __m256
#define LANES 8
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET(x) _mm256_set1_ps(x)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#else
typedef float vector_f32 __attribute__((vector_size(16)));
static inline __attribute__((unused)) vector_f32 load_f32(const float *p) {
  vector_f32 v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_f32(float *p, vector_f32 v) { memcpy(p, &v, sizeof v); }
#define V vector_f32
#define LANES 4
#define V_LOAD(p) load_f32(p)
#define V_STORE(p, v) store_f32(p, v)
#define V_SET(x) ((vector_f32){} + (float)(x))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#else
#if defined(__AVX512F__)
#define V __m512d
#define LANES 8
#define V_LOAD(p) _mm512_loadu_pd(p)
#define V_STORE(p, v) _mm512_storeu_pd(p, v)
#define V_SET(x) _mm512_set1_pd(x)
#define V_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#elif defined(__AVX__) && defined(__FMA__)
#define V __m256d
#define LANES 4
#define V_LOAD(p) _mm256_loadu_pd(p)
#define V_STORE(p, v) _mm256_storeu_pd(p, v)
#define V_SET(x) _mm256_set1_pd(x)
#define V_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#else
typedef double vector_f64 __attribute__((vector_size(16)));
static inline vector_f64 load_f64(const double *p) {
  vector_f64 v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_f64(double *p, vector_f64 v) { memcpy(p, &v, sizeof v); }
#define V vector_f64
#define LANES 2
#define V_LOAD(p) load_f64(p)
#define V_STORE(p, v) store_f64(p, v)
#define V_SET(x) ((vector_f64){} + (double)(x))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif
