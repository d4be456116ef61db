/* Double functions without branches, the counterpart of vector_math.h. Compilers can vectorize
 * loops that call them, and a result does not depend on the element's index. On GPUs, the names map
 * to CUDA's functions.
 *
 * Maximum errors in ULPs:
 *
 *   0.9   sine and cosine for |x| <= MPG_DOUBLE_TRIG_LIMIT
 *   1     exp, log, log1p, erf
 *   1.2   pow
 *   2     log2, log10, expm1
 *   2.3   tan
 *   3     tanh, sigmoid
 *
 * These functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_COMMON_VECTOR_MATH_DOUBLE_H
#define KERNELS_COMMON_VECTOR_MATH_DOUBLE_H

#include "kernels/common/vector_math.h"

/* Returns C's pow(x, y), given `result` = |x|^y. Fixes the sign and the special cases. */
#define MPG_POWER_ENDS(name, T, magnitude_of, truncated, with_sign_of)                     \
  MPG_INLINE T name(T x, T y, T result) {                                                  \
    T magnitude = magnitude_of(x), halved = (T)0.5 * y;                                    \
    int whole = truncated(y) == y, odd = whole & (truncated(halved) != halved);            \
    result = ((x < 0) & (magnitude != (T)INFINITY) & !whole) ? (T)NAN : result;            \
    result = with_sign_of(result, odd ? x : (T)1);                                         \
    int one = (x == 1) | (y == 0) | ((magnitude == 1) & (magnitude_of(y) == (T)INFINITY)); \
    return one ? (T)1 : result;                                                            \
  }

#ifdef __CUDACC__
#define mpg_exp(x) exp(x)
#define mpg_expm1(x) expm1(x)
#define mpg_log(x) log(x)
#define mpg_log1p(x) log1p(x)
#define mpg_tanh(x) tanh(x)
#define mpg_log2(x) log2(x)
#define mpg_sigmoid(x) (1 / (1 + exp(-(x))))
#define mpg_log10(x) log10(x)
#define mpg_erf(x) erf(x)
#define mpg_pow(x, y) pow(x, y)
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
#ifdef MPG_MATH_FUSED
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

#define MPG_DOUBLE_ROUNDER 0x1.8p52 /* the low bits of x + MPG_DOUBLE_ROUNDER are round(x) */
#define MPG_DOUBLE_LOG2_E 0x1.71547652b82fep+0
#define MPG_DOUBLE_LN2 0x1.62e42fefa39efp-1
#define MPG_HALF_PI 0x1.921fb54442d18p+0
#define MPG_DOUBLE_LN2_HIGH 0x1.62e42feep-1 /* 32 bits: its product with an exponent is exact */
#define MPG_DOUBLE_LN2_LOW 0x1.a39ef35793c76p-33
/* Returns 2^n. n is unsigned, because NaN inputs lead to an arbitrary n, whose overflow must not be
 * undefined behavior. */
MPG_INLINE double mpg_double_power_of_two(uint64_t n) {
  return mpg_double_from_bits((n + 1023) << 52);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2. Returns r. */
MPG_INLINE double mpg_double_exp_rest(double x, uint64_t *n) {
  double shifted = mpg_fma_double(x, MPG_DOUBLE_LOG2_E, MPG_DOUBLE_ROUNDER);
  double whole = shifted - MPG_DOUBLE_ROUNDER;
  *n = mpg_double_bits(shifted) - 0x4338000000000000u;
  double r = mpg_fma_double(whole, -MPG_DOUBLE_LN2_HIGH, x);
  return mpg_fma_double(whole, -MPG_DOUBLE_LN2_LOW, r);
}
MPG_INLINE double mpg_double_expm1_near(double r) { /* |r| <= ln 2 / 2 */
  double q =
      MPG_POLY(mpg_fma_double, r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
               1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5);
  return mpg_fma_double(q, r * r, r);
}
/* Returns y * 2^n. Multiplies by two powers of two, because the result may be subnormal or
 * overflow. */
MPG_INLINE double mpg_double_scaled(double y, uint64_t n) {
  uint64_t half = ((n + 2048) >> 1) - 1024;
  return y * mpg_double_power_of_two(half) * mpg_double_power_of_two(n - half);
}

MPG_INLINE double mpg_exp(double x) {
  double magnitude = fabs(x), bounded = copysign(magnitude > 746.0 ? 746.0 : magnitude, x);
  uint64_t n;
  double r = mpg_double_exp_rest(bounded, &n);
  return mpg_double_scaled(1.0 + mpg_double_expm1_near(r), n);
}

MPG_INLINE double mpg_sigmoid(double x) { /* 0 if exp(-x) >= 2^1023.5 */
  double magnitude = fabs(x), bounded = copysign(magnitude > 709.43 ? 709.43 : magnitude, x);
  uint64_t n;
  double y = 1.0 + mpg_double_expm1_near(mpg_double_exp_rest(-bounded, &n));
  double result = 1.0 / mpg_fma_double(y, mpg_double_power_of_two(n), 1.0);
  return x < -709.43 ? 0.0 : result;
}

MPG_INLINE double mpg_expm1(double x) {
  double bounded = x < -40.0 ? -40.0 : x > 710.0 ? 710.0 : x;
  uint64_t n;
  double y = mpg_double_expm1_near(mpg_double_exp_rest(bounded, &n));
  double scale = mpg_double_power_of_two(n - 1); /* halved, because 2^1024 overflows */
  double result = mpg_fma_double(scale, y, scale - 0.5) * 2.0;
  return n == 0 ? x == 0.0 ? x : y : result;
}

/* Returns log(1 + f) + e ln 2. */
MPG_INLINE double mpg_double_log_of_parts(double f, double e) {
  double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double q = MPG_POLY(mpg_fma_double, z, 2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                      2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3);
  /* 2 s = f - half + s half */
  double small = mpg_fma_double(s, mpg_fma_double(q, z, half), e * MPG_DOUBLE_LN2_LOW);
  return mpg_fma_double(e, MPG_DOUBLE_LN2_HIGH, f - (half - small));
}

/* Splits a positive normal x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). Returns f. */
MPG_INLINE double mpg_double_log_parts(double x, double *exponent) {
  uint64_t shifted = mpg_double_bits(x) - 0x3fe6a09e667f3bcdu;
  uint64_t biased = (shifted >> 52) ^ 0x800; /* the signed exponent + 2048 */
  *exponent = mpg_double_from_bits(0x4338000000000000u + biased) - (MPG_DOUBLE_ROUNDER + 2048.0);
  return mpg_double_from_bits((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
}

MPG_LOG_SPECIAL(mpg_double_log_special, double)

MPG_INLINE double mpg_log(double x) {
  int subnormal = x < 0x1p-1022;
  double e, f = mpg_double_log_parts(x * (subnormal ? 0x1p54 : 1.0), &e);
  return mpg_double_log_special(x, mpg_double_log_of_parts(f, e - (subnormal ? 54.0 : 0.0)));
}

/* Returns log(x) * factor, the logarithm to another base. The caller passes factor * ln 2 as the
 * sum `two` + `two_low`. `two` has few bits, so that its product with an exponent is exact. */
MPG_INLINE double mpg_double_log_of_base(double x, double factor, double two, double two_low) {
  int subnormal = x < 0x1p-1022;
  double e, f = mpg_double_log_parts(x * (subnormal ? 0x1p54 : 1.0), &e);
  e -= subnormal ? 54.0 : 0.0;
  double near = mpg_fma_double(mpg_double_log_of_parts(f, 0.0), factor, e * two_low);
  return mpg_double_log_special(x, mpg_fma_double(e, two, near));
}
MPG_INLINE double mpg_log2(double x) {
  return mpg_double_log_of_base(x, MPG_DOUBLE_LOG2_E, 1.0, 0.0);
}
MPG_INLINE double mpg_log10(double x) {
  return mpg_double_log_of_base(x, 0x1.bcb7b1526e50ep-2, 0x1.34413508p-2, 0x1.f79fef311f12bp-34);
}

MPG_INLINE double mpg_log1p(double x) {
  double u = 1.0 + x, e;
  double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0); /* rounding error of u */
  double f = mpg_double_log_parts(u, &e);
  double y = mpg_double_log_of_parts(f, e) + lost / u;
  return mpg_double_log_special(u, u == 1.0 ? x : y);
}

MPG_INLINE double mpg_tanh(double x) {
  double magnitude = fabs(x);
  double t = mpg_expm1(2.0 * (magnitude > 22.0 ? 22.0 : magnitude));
  return copysign(t / (t + 2.0), x);
}

/* Uses a polynomial for |x| < 1. Otherwise computes 1 - erf(u) = exp(-e(u)) with u = |x|, which is
 * bounded by 6, because erf(6) rounds to 1. */
MPG_INLINE double mpg_erf(double x) {
  double t = fabs(x), s = x * x;
  double p = MPG_POLY(mpg_fma_double, s, -0x1.acaea087ef4a3p-31, 0x1.d77462fec50a4p-27,
                      -0x1.5c14994c96684p-23, 0x1.b9821dc48d006p-20, -0x1.f4ca8b6439747p-17,
                      0x1.f9a2bedf14745p-14, -0x1.c02db06cefe20p-11, 0x1.565bccfa73ddap-8,
                      -0x1.b82ce312050b7p-6, 0x1.ce2f21a040fd3p-4, -0x1.812746b0379c1p-2,
                      0x1.06eba8214db68p-3);
  double near = mpg_fma_double(p, x, x);
  double u = t > 6.0 ? 6.0 : t;
  double e = MPG_POLY(
      mpg_fma_double, u, 0x1.58150cbdd514ep-38, -0x1.bf3dddb816c3dp-33, 0x1.0d740986654c6p-28,
      -0x1.8e23862b00ba8p-25, 0x1.90ccba7510ee0p-22, -0x1.1f013d7d13f2fp-19, 0x1.2396032f4873ep-17,
      -0x1.80bfa3cf6335dp-16, 0x1.5a3a2ca22cf61p-16, 0x1.194d3eae31e46p-13, -0x1.9324750a25770p-11,
      0x1.f59d8fb07a83cp-10, -0x1.abd3617147a6cp-12, -0x1.372b6c0da514ep-6, 0x1.a4ada556570cfp-4,
      0x1.45f6170505c68p-1, 0x1.20dd21ce2829ap+0, 0x1.06e4c4c5289b0p-21);
  uint64_t n;
  double rest = mpg_double_expm1_near(mpg_double_exp_rest(-e, &n)),
         scale = mpg_double_power_of_two(n);
  double far = copysign(1.0 - mpg_fma_double(scale, rest, scale), x);
  return t < 1.0 ? near : far;
}

/* Sine and cosine as in vector_math.h, accurate for |x| up to this limit. */
#define MPG_DOUBLE_TRIG_LIMIT 0x1p22
MPG_INLINE double mpg_double_quarter_turns(double x, uint64_t *quarter, double *over) {
  double shifted = mpg_fma_double(x, 0x1.45f306dc9c883p-1, MPG_DOUBLE_ROUNDER);
  double whole = shifted - MPG_DOUBLE_ROUNDER;
  *quarter = mpg_double_bits(shifted);
  /* pi / 2 in four parts. The first three have at most 26 bits, so their products are exact. */
  double high = mpg_fma_double(whole, -0x1.921fb5p+0, x);
  high = mpg_fma_double(whole, -0x1.110b46p-26, high);
  double r = mpg_fma_double(whole, -0x1.1a6262p-54, high);
  *over =
      mpg_fma_double(whole, 0x1.3145c06e0e689p-78, mpg_fma_double(whole, 0x1.1a6262p-54, r - high));
  return r;
}
MPG_INLINE double mpg_double_sine(double r, double over) { /* sin(r - over) */
  double s = r * r;
  double sine = MPG_POLY(mpg_fma_double, s, -0x1.5e1f8d3bfb3d5p-33, 0x1.ae6054aee77d6p-26,
                         -0x1.71de37f601b16p-19, 0x1.a01a019eee322p-13, -0x1.1111111110ea3p-7,
                         0x1.5555555555556p-3);
  return r - mpg_fma_double(sine * s, r, over);
}
MPG_INLINE double mpg_double_cosine(double r, double over) { /* cos(r - over) */
  double s = r * r, half = 0.5 * s, one = 1.0 - half;
  double cosine = MPG_POLY(mpg_fma_double, s, -0x1.8c1cbd7a3d977p-37, 0x1.1ee2c7862a4c8p-29,
                           -0x1.27e4ed290b78bp-22, 0x1.a01a018d21863p-16, -0x1.6c16c16c0ad64p-10,
                           0x1.55555555554fep-5);
  return one + (mpg_fma_double(cosine * s, s, r * over) + ((1.0 - one) - half));
}
MPG_INLINE double mpg_double_sine_or_cosine(double r, double over, uint64_t quarter) {
  double value =
      (int64_t)(quarter << 63) < 0 ? mpg_double_cosine(r, over) : mpg_double_sine(r, over);
  return mpg_double_from_bits(mpg_double_bits(value) ^ (quarter & 2) << 62);
}
MPG_INLINE double mpg_sin_limited(double x) {
  uint64_t quarter;
  double over, r = mpg_double_quarter_turns(x, &quarter, &over);
  return mpg_double_sine_or_cosine(r, over, quarter);
}
MPG_INLINE double mpg_cos_limited(double x) {
  uint64_t quarter;
  double over, r = mpg_double_quarter_turns(x, &quarter, &over);
  return mpg_double_sine_or_cosine(r, over, quarter + 1);
}
MPG_INLINE double mpg_tan_limited(double x) {
  uint64_t quarter;
  double over, r = mpg_double_quarter_turns(x, &quarter, &over);
  double sine = mpg_double_sine(r, over), cosine = mpg_double_cosine(r, over);
  int odd = (int64_t)(quarter << 63) < 0;
  return (odd ? cosine : sine) / (odd ? -sine : cosine);
}

/* mpg_remainder_limited returns the remainder of x / y with the sign of y. It requires
 * MPG_DOUBLE_REMAINDER_NEAR: finite numbers, a quotient below 2^50, and a fused multiply-add, which
 * subtracts the product exactly. */
#ifdef MPG_MATH_FUSED
#define MPG_DOUBLE_REMAINDER_NEAR(x, y) \
  ((fabs(x) < fabs(y) * 0x1p50) & (fabs(y) < (double)INFINITY))
#else
#define MPG_DOUBLE_REMAINDER_NEAR(x, y) ((void)(x), (void)(y), 0)
#endif
MPG_INLINE double mpg_remainder_limited(double x, double y) {
  double whole = (x / y + MPG_DOUBLE_ROUNDER) - MPG_DOUBLE_ROUNDER,
         r = mpg_fma_double(-whole, y, x);
  r = r == 0.0 ? copysign(0.0, x) : r;
  return ((r != 0.0) & ((r < 0.0) != (y < 0.0))) ? r + y : r;
}

#ifdef MPG_MATH_FUSED
MPG_POWER_ENDS(mpg_double_power_ends, double, fabs, trunc, copysign)

/* Returns x^y. Computes the logarithm as a sum of two doubles with a relative error of 2^-66. */
MPG_INLINE double mpg_pow(double x, double y) {
  double magnitude = fabs(x);
  int subnormal = magnitude < 0x1p-1022;
  double e, f = mpg_double_log_parts(magnitude * (subnormal ? 0x1p54 : 1.0), &e);
  e -= subnormal ? 54.0 : 0.0;
  /* s = f / (2 + f), z = s^2, log(1 + f) = 2 s + s z (2/3 + z q) */
  double over = 2.0 + f, inverse = 1.0 / over, s = f * inverse;
  double s_low = fma(-s, f - (over - 2.0), fma(-s, over, f)) * inverse;
  double z = s * s, z_low = fma(s, s, -z) + 2.0 * s * s_low;
  double q = MPG_POLY(fma, z, 0x1.e045d596888b4p-4, 0x1.df7a764ec7daep-4, 0x1.1118d37850e76p-3,
                      0x1.3b139598f7ba6p-3, 0x1.745d177b267c2p-3, 0x1.c71c71c6e9f36p-3,
                      0x1.2492492492524p-2, 0x1.999999999999ap-2);
  double t = fma(z, q, 0x1.5555555555555p-1);
  double t_low = fma(z, q, 0x1.5555555555555p-1 - t) + fma(z_low, q, 0x1.5555555555555p-55);
  double zt = z * t, zt_low = fma(z, t, -zt) + (z * t_low + z_low * t);
  double c = s * zt, c_low = fma(s, zt, -c) + (s * zt_low + s_low * zt);
  double a = 2.0 * s + c, a_low = ((2.0 * s - a) + c) + (c_low + 2.0 * s_low);
  double high = fma(e, MPG_DOUBLE_LN2_HIGH, a);
  double low = (fma(e, MPG_DOUBLE_LN2_HIGH, -high) + a) + fma(e, MPG_DOUBLE_LN2_LOW, a_low);
  double logarithm = mpg_double_log_special(magnitude, high);
  double h = y * logarithm;
  double most = fabs(h), bounded = copysign(most > 800.0 ? 800.0 : most, h);
  double l = most < 800.0 ? fma(y, logarithm, -h) + y * low : 0.0;
  uint64_t n;
  double r = mpg_double_exp_rest(bounded, &n) + l;
  return mpg_double_power_ends(x, y, mpg_double_scaled(1.0 + mpg_double_expm1_near(r), n));
}
#else
#define mpg_pow(x, y) pow(x, y)
#endif
#endif

#endif
