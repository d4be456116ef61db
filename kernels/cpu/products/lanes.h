/* Vectors as the templates of matrix products take them, for the instruction set being compiled: V,
 * a vector of LANES elements; V_LOAD, V_STORE (unaligned); V_SET, all lanes alike; V_FMA(a, b, c) =
 * a * b + c, fused where the processor can. Of float, or of double with LANES_OF_DOUBLE defined.
 * Included again for each type: no include guard. */
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
typedef float single_vector __attribute__((vector_size(16)));
static inline __attribute__((unused)) single_vector single_load(const float *p) {
  single_vector v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void single_store(float *p, single_vector v) { memcpy(p, &v, sizeof v); }
#define V single_vector
#define LANES 4
#define V_LOAD(p) single_load(p)
#define V_STORE(p, v) single_store(p, v)
#define V_SET(x) ((single_vector){} + (float)(x))
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
typedef double double_vector __attribute__((vector_size(16)));
static inline double_vector double_load(const double *p) {
  double_vector v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void double_store(double *p, double_vector v) { memcpy(p, &v, sizeof v); }
#define V double_vector
#define LANES 2
#define V_LOAD(p) double_load(p)
#define V_STORE(p, v) double_store(p, v)
#define V_SET(x) ((double_vector){} + (double)(x))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif
