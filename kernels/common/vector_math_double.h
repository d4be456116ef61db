/* Functions of double as vector_math.h has them of float: without branches, so that loops over them are vectorised, an element's bits the same wherever it
 * is. Largest errors in units of the last place: exp 1, expm1 2, log 1, log1p 2, tanh 3, sigmoid 3. Also powf, computed in double: 1 of float.
 * Polynomials are Taylor's, over ranges where their rest is below half a unit. GPUs use their own library. Stateless; any thread.
 */
#ifndef KERNELS_COMMON_VECTOR_MATH_DOUBLE_H
#define KERNELS_COMMON_VECTOR_MATH_DOUBLE_H

#include "kernels/common/vector_math.h"

#ifdef __CUDACC__
#define mpg_exp(x) exp(x)
#define mpg_expm1(x) expm1(x)
#define mpg_log(x) log(x)
#define mpg_log1p(x) log1p(x)
#define mpg_tanh(x) tanh(x)
#define mpg_powf(x, y) powf(x, y)
#else

MPG_INLINE double mpg_double_from_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
MPG_INLINE uint64_t mpg_double_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

MPG_INLINE double mpg_fma_double(double a, double b, double c) {
#if defined(__FMA__) && !defined(MPG_MATH_WITHOUT_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

#define MPG_DOUBLE_ROUNDER 0x1.8p52 /* x + this has round(x) in its low bits */
#define MPG_DOUBLE_LN2_HIGH 0x1.62e42feep-1 /* 32 bits: its product with an exponent is exact */
#define MPG_DOUBLE_LN2_LOW 0x1.a39ef35793c76p-33
/* Exponents wrap, as those of NaN are any number. */
MPG_INLINE double mpg_double_power_of_two(uint64_t n) { return mpg_double_from_bits((n + 1023) << 52); }

/* x = n ln 2 + r, |r| <= ln 2 / 2; returns exp(r) - 1. */
MPG_INLINE double mpg_double_exp_reduced(double x, uint64_t *n) {
  double shifted = mpg_fma_double(x, 0x1.71547652b82fep+0, MPG_DOUBLE_ROUNDER), whole = shifted - MPG_DOUBLE_ROUNDER;
  *n = mpg_double_bits(shifted) - 0x4338000000000000u;
  double r = mpg_fma_double(whole, -MPG_DOUBLE_LN2_HIGH, x);
  r = mpg_fma_double(whole, -MPG_DOUBLE_LN2_LOW, r);
  double q = 1.0 / 6227020800;
  q = mpg_fma_double(q, r, 1.0 / 479001600);
  q = mpg_fma_double(q, r, 1.0 / 39916800);
  q = mpg_fma_double(q, r, 1.0 / 3628800);
  q = mpg_fma_double(q, r, 1.0 / 362880);
  q = mpg_fma_double(q, r, 1.0 / 40320);
  q = mpg_fma_double(q, r, 1.0 / 5040);
  q = mpg_fma_double(q, r, 1.0 / 720);
  q = mpg_fma_double(q, r, 1.0 / 120);
  q = mpg_fma_double(q, r, 1.0 / 24);
  q = mpg_fma_double(q, r, 1.0 / 6);
  q = mpg_fma_double(q, r, 0.5);
  return mpg_fma_double(q, r * r, r);
}

MPG_INLINE double mpg_exp(double x) {
  double bounded = x < -746.0 ? -746.0 : x > 710.0 ? 710.0 : x; /* NaN stays */
  uint64_t n;
  double y = 1.0 + mpg_double_exp_reduced(bounded, &n);
  uint64_t half = ((n + 2048) >> 1) - 1024; /* two factors: the result may be subnormal, or overflow */
  return y * mpg_double_power_of_two(half) * mpg_double_power_of_two(n - half);
}

MPG_INLINE double mpg_expm1(double x) {
  double bounded = x < -40.0 ? -40.0 : x > 710.0 ? 710.0 : x;
  uint64_t n;
  double y = mpg_double_exp_reduced(bounded, &n);
  double scale = mpg_double_power_of_two(n - 1); /* half of it, as 2^1024 is not a double */
  double result = mpg_fma_double(scale, y, scale - 0.5) * 2.0;
  return n == 0 ? x == 0.0 ? x : y : result;
}

/* log(1 + f) + e ln 2. */
MPG_INLINE double mpg_double_log_of_parts(double f, double e) {
  double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double q = 2.0 / 23;
  q = mpg_fma_double(q, z, 2.0 / 21);
  q = mpg_fma_double(q, z, 2.0 / 19);
  q = mpg_fma_double(q, z, 2.0 / 17);
  q = mpg_fma_double(q, z, 2.0 / 15);
  q = mpg_fma_double(q, z, 2.0 / 13);
  q = mpg_fma_double(q, z, 2.0 / 11);
  q = mpg_fma_double(q, z, 2.0 / 9);
  q = mpg_fma_double(q, z, 2.0 / 7);
  q = mpg_fma_double(q, z, 2.0 / 5);
  q = mpg_fma_double(q, z, 2.0 / 3);
  double small = mpg_fma_double(s, mpg_fma_double(q, z, half), e * MPG_DOUBLE_LN2_LOW); /* 2 s = f - half + s half */
  return mpg_fma_double(e, MPG_DOUBLE_LN2_HIGH, f - (half - small));
}

/* x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); x positive and normal. */
MPG_INLINE double mpg_double_log_parts(double x, double *exponent) {
  uint64_t shifted = mpg_double_bits(x) - 0x3fe6a09e667f3bcdu;
  uint64_t biased = (shifted >> 52) ^ 0x800; /* the signed exponent, and 2048 */
  *exponent = mpg_double_from_bits(0x4338000000000000u + biased) - (MPG_DOUBLE_ROUNDER + 2048.0);
  return mpg_double_from_bits((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
}

MPG_INLINE double mpg_log(double x) {
  int subnormal = x < 0x1p-1022;
  double e, f = mpg_double_log_parts(x * (subnormal ? 0x1p54 : 1.0), &e);
  double y = mpg_double_log_of_parts(f, e - (subnormal ? 54.0 : 0.0));
  y = x == 0.0 ? -(double)INFINITY : y;
  y = x < 0.0 ? (double)NAN : y;
  return x == (double)INFINITY || x != x ? x : y;
}

MPG_INLINE double mpg_log1p(double x) {
  double u = 1.0 + x, e;
  double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0); /* what rounding took from u */
  double f = mpg_double_log_parts(u, &e);
  double y = mpg_double_log_of_parts(f, e) + lost / u;
  y = u == 1.0 ? x : y;
  y = x == -1.0 ? -(double)INFINITY : y;
  y = x < -1.0 ? (double)NAN : y;
  return x == (double)INFINITY || x != x ? x : y;
}

MPG_INLINE double mpg_tanh(double x) {
  double magnitude = fabs(x);
  double t = mpg_expm1(2.0 * (magnitude > 22.0 ? 22.0 : magnitude));
  return copysign(t / (t + 2.0), x);
}

/* x to the power of y as C's powf has it, signs, zeros, infinities and NaN included. */
MPG_INLINE float mpg_powf(float x, float y) {
  float magnitude = fabsf(x), halved = 0.5f * y;
  float result = (float)mpg_exp((double)y * mpg_log((double)magnitude));
  int whole = truncf(y) == y, odd = whole & (truncf(halved) != halved);
  result = ((x < 0.0f) & (magnitude != INFINITY) & !whole) ? NAN : result;
  result = mpg_float_from_bits(mpg_float_bits(result) ^ (odd ? mpg_float_bits(x) & 0x80000000u : 0u));
  int one = (x == 1.0f) | (y == 0.0f) | ((magnitude == 1.0f) & (fabsf(y) == INFINITY));
  return one ? 1.0f : result;
}
#endif

#endif
