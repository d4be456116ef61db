/* Float functions without branches, so that compilers can vectorize loops that call them. All
 * elements of a loop use fused multiply-adds if the processor has them. A result therefore does not
 * depend on the element's index.
 *
 * Maximum errors in ULPs, with fused multiply-adds:
 *
 *   1     exp, log, log1p, log2, log10, sinh, cosh, tanh, erf
 *   1.2   sine and cosine for |x| <= MPG_TRIG_LIMIT; callers use the C library for larger |x|
 *   1.5   expm1
 *   2.5   sigmoid
 *
 * Zeros keep their sign. The coefficients are minimax fits over the reduced ranges.
 * vector_math_mixed.h has float functions that compute in double, and vector_math_double.h has
 * double functions. Define MPG_MATH_WITHOUT_FMA before including for plain products and sums. These
 * functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_COMMON_VECTOR_MATH_H
#define KERNELS_COMMON_VECTOR_MATH_H

#include <math.h>

#include "kernels/common/half.h"
#include "kernels/common/polynomial.h"

#ifdef __CUDACC__
#define MPG_INLINE MPG_HOST_DEVICE
#else
#define MPG_INLINE static inline __attribute__((always_inline))
#endif

#if defined(__CUDA_ARCH__) || (defined(__FMA__) && !defined(MPG_MATH_WITHOUT_FMA))
#define MPG_MATH_FUSED
#endif
MPG_INLINE float mpg_fma(float a, float b, float c) {
#ifdef MPG_MATH_FUSED
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/* Rounds a float to an integer by an addition: the low bits of x + MPG_ROUNDER are round(x), and
 * the low bits of x + (MPG_ROUNDER + b) are round(x) + b. Ties round to the even sum. */
#define MPG_ROUNDER 0x1.8p23f
/* Return 2^n for an integer n in [-126, 127]. mpg_power_of_biased reads the biased exponent n + 127
 * from the low bits of `shifted`; mpg_power_of_two takes n. */
MPG_INLINE float mpg_power_of_biased(float shifted) {
  return mpg_float_from_bits(mpg_float_bits(shifted) << 23);
}
MPG_INLINE float mpg_power_of_two(int32_t n) {
  return mpg_float_from_bits((uint32_t)(n + 127) << 23);
}

/* Returns y with the sign of x. If y is not 0, it must already have this sign. */
MPG_INLINE float mpg_with_sign(float y, float x) {
  return mpg_float_from_bits(mpg_float_bits(y) | (mpg_float_bits(x) & 0x80000000u));
}

#define MPG_LOG2_E 0x1.715476p+0f
#define MPG_LN2_HIGH 0x1.62ep-1f /* has 12 bits, so its product with an exponent is exact */
#define MPG_LN2_LOW 0x1.0bfbe8p-15f

/* Returns exp(r) - 1 for r = x - whole * ln 2. `whole` is an integer such that |r| <= ln 2 / 2. */
MPG_INLINE float mpg_exp_rest(float x, float whole) {
  float r = mpg_fma(whole, -MPG_LN2_HIGH, x);
  r = mpg_fma(whole, -MPG_LN2_LOW, r);
  float q =
      MPG_POLY(mpg_fma, r, 0x1.6b6ddep-10f, 0x1.123002p-7f, 0x1.55568ap-5f, 0x1.5554a2p-3f, 0.5f);
  return mpg_fma(q, r * r, r);
}
/* Splits x = n ln 2 + r with |r| <= ln 2 / 2. Returns exp(r) - 1 and sets *scale to 2^(n + offset).
 * n + offset must be at least -127; for -127, the scale is 0. */
MPG_INLINE float mpg_exp_reduced(float x, float offset, float *scale) {
  float rounder = MPG_ROUNDER + 127.0f + offset, shifted = mpg_fma(x, MPG_LOG2_E, rounder);
  *scale = mpg_power_of_biased(shifted);
  return mpg_exp_rest(x, shifted - rounder);
}

MPG_INLINE float mpg_expf(float x) {
  float bounded = x < -105.0f ? -105.0f : x; /* keeps NaN */
  /* Bounds the exponent instead of x, because an integer minimum takes one instruction. For larger
   * x, the remainder grows instead, and the result is still infinite. */
  const float rounder = MPG_ROUNDER + 254.0f, most = rounder + 152.0f;
  uint32_t bits = mpg_float_bits(mpg_fma(bounded, MPG_LOG2_E, rounder));
  bits = bits < mpg_float_bits(most) ? bits : mpg_float_bits(most);
  float y = mpg_exp_rest(bounded, mpg_float_from_bits(bits) - rounder);
  /* Multiplies by two powers of two, because the result may be subnormal or overflow. */
  uint32_t half = bits >> 1 << 23, rest = (bits << 23) - half;
  float scale = mpg_float_from_bits(half);
  return mpg_fma(scale, y, scale) * mpg_float_from_bits(rest);
}

/* Returns exp(x) for x <= 0. Flushes results below the smallest normal float to 0, which takes less
 * work than mpg_expf. */
MPG_INLINE float mpg_exp_nonpositive(float x) {
  const float least = -0x1.5d589ep+6f; /* log of the least normal float */
  float scale, y = mpg_exp_reduced(x < least ? least : x, 0.0f, &scale);
  return x < least ? 0.0f : mpg_fma(scale, y, scale);
}

MPG_INLINE float mpg_expm1f(float x) {
  float bounded = x < -18.0f ? -18.0f : x > 89.0f ? 89.0f : x;
  float scale, y = mpg_exp_reduced(bounded, -1.0f, &scale); /* halved, because 2^128 overflows */
  float result = mpg_fma(scale, y, scale - 0.5f) * 2.0f;
  return mpg_with_sign(scale == 0.5f ? y : result, x);
}

/* Splits a positive normal x into 2^(e + scaled / 2^23) * (1 + f) with sqrt(1/2) <= 1 + f <
 * sqrt(2). Returns f and sets *exponent to e. The caller computes log(1 + f). */
MPG_INLINE float mpg_log_parts_scaled(float x, uint32_t scaled, float *exponent) {
  uint32_t shifted = mpg_float_bits(x) - 0x3f3504f3u;
  *exponent = (float)((int32_t)(shifted - scaled) >> 23);
  return mpg_float_from_bits((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
}
MPG_INLINE float mpg_log_parts(float x, float *exponent) {
  return mpg_log_parts_scaled(x, 0, exponent);
}
/* Same as mpg_log_parts, but also for subnormal x, which is scaled first. Uses a mask instead of a
 * conditional, because compilers emit a branch for the latter, which prevents vectorization. */
MPG_INLINE float mpg_log_parts_of_any(float x, float *exponent) {
  uint32_t below = mpg_float_bits(x) - 0x00800000u,
           scaled = (uint32_t)((int32_t)below >> 31) & 23u << 23;
  return mpg_log_parts_scaled(x * mpg_float_from_bits(0x3f800000u + scaled), scaled, exponent);
}
MPG_INLINE float mpg_log_rest(float f, float tail) { /* returns log(1 + f) - f + tail */
  float q =
      MPG_POLY(mpg_fma, f, 0x1.14573ep-4f, -0x1.de3bf8p-4f, 0x1.e6f08cp-4f, -0x1.fc220ep-4f,
               0x1.233766p-3f, -0x1.555c4ep-3f, 0x1.99a4b6p-3f, -0x1.000006p-2f, 0x1.555548p-2f);
  float square = f * f;
  return mpg_fma(-0.5f, square, mpg_fma(q * f, square, tail));
}
/* Defines a function that takes y = log(x) and corrects it if x is 0, negative, infinite or NaN. */
#define MPG_LOG_SPECIAL(name, T)                    \
  MPG_INLINE T name(T x, T y) {                     \
    y = x == 0 ? -(T)INFINITY : y;                  \
    y = x < 0 ? (T)NAN : y;                         \
    return x < (T)INFINITY ? y : x; /* keeps NaN */ \
  }
MPG_LOG_SPECIAL(mpg_log_special, float)

MPG_INLINE float mpg_logf(float x) {
  float e, f = mpg_log_parts_of_any(x, &e);
  return mpg_log_special(x, mpg_fma(e, MPG_LN2_HIGH, f + mpg_log_rest(f, e * MPG_LN2_LOW)));
}

MPG_INLINE float mpg_log1pf(float x) {
  float u = 1.0f + x, e;
  float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f); /* rounding error of u */
  float f = mpg_log_parts(u, &e);
  float y = mpg_fma(e, MPG_LN2_HIGH, f + mpg_log_rest(f, mpg_fma(e, MPG_LN2_LOW, lost / u)));
  return mpg_log_special(u, u == 1.0f ? x : y);
}

/* Returns log(x) * factor, the logarithm to another base. The caller passes the factor as the sum
 * factor + factor_low, and factor * ln 2 as the sum two + two_low. `two` has few bits, so that its
 * product with an exponent is exact. */
MPG_INLINE float mpg_log_of_base(float x, float factor, float factor_low, float two,
                                 float two_low) {
  float e, f = mpg_log_parts_of_any(x, &e), rest = mpg_log_rest(f, 0.0f);
#ifdef MPG_MATH_FUSED
  float small = mpg_fma(rest, factor, mpg_fma(f, factor_low, e * two_low));
  return mpg_log_special(x, mpg_fma(e, two, mpg_fma(f, factor, small)));
#else
  double near = ((double)f + rest) * ((double)factor + factor_low);
  return mpg_log_special(x, (float)(e * ((double)two + two_low) + near));
#endif
}
MPG_INLINE float mpg_log2f(float x) {
  return mpg_log_of_base(x, MPG_LOG2_E, 0x1.4ae0cp-26f, 1.0f, 0.0f);
}
MPG_INLINE float mpg_log10f(float x) {
  return mpg_log_of_base(x, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f, 0x1.344p-2f, 0x1.3509f8p-18f);
}

MPG_INLINE float mpg_tanhf(float x) {
  float s = x * x, magnitude = fabsf(x);
  float p = MPG_POLY(mpg_fma, s, -0x1.77ecc4p-12f, 0x1.2da716p-9f, -0x1.0460d8p-7f, 0x1.6009b6p-6f,
                     -0x1.b9623ap-5f, 0x1.110be4p-3f, -0x1.55553cp-2f);
  float near = mpg_fma(p * s, x, x);
  /* Computes 1 - 2 / (exp(2|x|) + 1) for |x| >= 1. The quotient is at most 1/4, so the result has
   * at most 1/4 of its error. An integer minimum bounds |x| in one instruction. NaN selects
   * `near`. */
  const float rounder = MPG_ROUNDER + 127.0f;
  uint32_t bits = mpg_float_bits(magnitude), ten = 0x41200000u;
  float bounded = mpg_float_from_bits(bits < ten ? bits : ten);
  float shifted = mpg_fma(bounded, 2 * MPG_LOG2_E, rounder), scale = mpg_power_of_biased(shifted);
  float r = mpg_fma(shifted - rounder, -0x1.62e43p-1f, bounded + bounded);
  float q =
      MPG_POLY(mpg_fma, r, 0x1.6db3f4p-10f, 0x1.123b4ep-7f, 0x1.55545ep-5f, 0x1.55549p-3f, 0.5f);
  float far = 1.0f - 2.0f / mpg_fma(scale, mpg_fma(q, r * r, r), scale + 1.0f);
  return copysignf(magnitude >= 1.0f ? far : near, x);
}

/* Returns (exp(|x|) + sign exp(-|x|)) / 4 for a sign of 1 or -1, which is half of cosh(x) or
 * sinh(|x|). Splits |x| = n ln 2 + r and sets *n and *cosine = cosh(r) - 1. Corrects the rounding
 * error of the larger exponential. For n = 0, the result is less precise, so mpg_coshf uses *cosine
 * instead. */
MPG_INLINE float mpg_half_hyperbolic(float x, float sign, int32_t *n, float *cosine) {
  float magnitude = fabsf(x), bounded = magnitude > 89.5f ? 89.5f : magnitude; /* keeps NaN */
  float shifted = mpg_fma(bounded, MPG_LOG2_E, MPG_ROUNDER), whole = shifted - MPG_ROUNDER;
  *n = (int32_t)(mpg_float_bits(shifted) - 0x4b400000u);
  float high = mpg_fma(whole, -MPG_LN2_HIGH, bounded), r = mpg_fma(whole, -MPG_LN2_LOW, high);
  float rest = mpg_fma(whole, -MPG_LN2_LOW, high - r), square = r * r;
  /* sinh(r) - r */
  float sine = MPG_POLY(mpg_fma, square, 0x1.a2e2f6p-13f, 0x1.110fbep-7f, 0x1.555556p-3f);
  sine = mpg_fma(sine * square, r, rest);
  float c = 0x1.6d4f24p-10f;
  c = mpg_fma(c, square, 0x1.5554e6p-5f);
  c = mpg_fma(c, square, 0.5f) * square;
  *cosine = c;
  float up = mpg_power_of_two(*n - 2), down = sign * mpg_power_of_two(*n > 60 ? -62 : -2 - *n);
  float sum = mpg_fma(up, r, up), lost = mpg_fma(up, r, up - sum);
  float small = mpg_fma(up - down, sine, mpg_fma(-down, r, down));
  return sum + (mpg_fma(up + down, c, small) + lost);
}
MPG_INLINE float mpg_coshf(float x) {
  int32_t n;
  float c, y = mpg_half_hyperbolic(x, 1.0f, &n, &c) * 2.0f;
  return n == 0 ? 1.0f + c : y;
}
MPG_INLINE float mpg_sinhf(float x) {
  float s = x * x;
  float near =
      MPG_POLY(mpg_fma, s, 0x1.75a6f4p-19f, 0x1.a02156p-13f, 0x1.1110e2p-7f, 0x1.555556p-3f);
  near = mpg_fma(near * s, x, x);
  int32_t n;
  float c, far = copysignf(mpg_half_hyperbolic(x, -1.0f, &n, &c) * 2.0f, x);
  return fabsf(x) < 1.0f ? near : x != x ? x : far;
}

MPG_INLINE float mpg_sigmoidf(float x) { /* 0 if exp(-x) >= 2^127.5 */
  float magnitude = fabsf(x), bounded = copysignf(magnitude > 88.3762f ? 88.3762f : magnitude, x);
  float scale, y = 1.0f + mpg_exp_reduced(-bounded, 0.0f, &scale);
  float result = 1.0f / mpg_fma(y, scale, 1.0f);
  return x < -88.3762f ? 0.0f : result;
}

/* Returns log(1 + exp(x)) without overflow. Computes s = exp(-|x|) <= 1 and log(1 + s), and
 * corrects the rounding error of 1 + s. */
MPG_INLINE float mpg_softreluf(float x) {
  float small = mpg_expf(-fabsf(x)), u = 1.0f + small, e;
  float f = mpg_log_parts(u, &e), lost = (small - (u - 1.0f)) / u;
  float y = mpg_fma(e, MPG_LN2_HIGH, f + mpg_log_rest(f, mpg_fma(e, MPG_LN2_LOW, lost)));
  return (x > 0.0f ? x : 0.0f) + (u == 1.0f ? small : y); /* keeps NaN */
}

MPG_INLINE float mpg_erff(float x) {
  float t = fabsf(x), s = x * x;
  float p = MPG_POLY(mpg_fma, s, 0x1.603ab6p-14f, -0x1.ab48dcp-11f, 0x1.54e65p-8f, -0x1.b811c2p-6f,
                     0x1.ce2e3p-4f, -0x1.812744p-2f, 0x1.06eba8p-3f);
  float near = mpg_fma(p, x, x);
  float u = t > 4.0f ? 4.0f : t;
  /* 1 - erf(u) = exp(-(u + u r(u))) */
  float r = MPG_POLY(mpg_fma, u, 0x1.7b4b1ep-17f, -0x1.533ebep-12f, 0x1.ddcf92p-9f, -0x1.856b74p-6f,
                     0x1.b32d06p-4f, 0x1.4531fcp-1f, 0x1.07796cp-3f);
  float scale, rest = mpg_exp_reduced(-mpg_fma(r, u, u), 0.0f, &scale);
  float far = copysignf(1.0f - mpg_fma(scale, rest, scale), x);
  return t < 0.921875f ? near : far;
}

/* Returns the standard normal CDF. The upper tail probability for |x| is 2^-(x^2 / (2 ln 2) +
 * r(|x|)). For |x| > 5, r hardly grows, so r(5) is used. */
MPG_INLINE float mpg_normal_cdff(float x) {
  /* An integer minimum takes one instruction. It replaces NaN, but the result is still NaN, because
   * x is also used below. */
  uint32_t magnitude = mpg_float_bits(x) & 0x7fffffffu, five = 0x40a00000u;
  float u = mpg_float_from_bits(magnitude < five ? magnitude : five);
  /* Pairs of terms (Estrin's scheme) keep the dependency chains short. */
  float u2 = u * u, u4 = u2 * u2;
  float tail = mpg_fma(-0x1.75bab8p-23f, u, 0x1.160b1ep-18f);
  float high = mpg_fma(mpg_fma(-0x1.4aee1ap-15f, u, 0x1.51eecep-13f), u2,
                       mpg_fma(0x1.de04c4p-13f, u, -0x1.d818a6p-8f));
  float low = mpg_fma(mpg_fma(0x1.aee5d4p-5f, u, -0x1.0c7752p-2f), u2,
                      mpg_fma(0x1.26af1ap+0f, u, 0x1.fffffep-1f));
  float r = mpg_fma(mpg_fma(tail, u4, high), u4, low);
  float power = mpg_fma(-0x1.715476p-1f * x, x, -r);
  uint32_t bits = mpg_float_bits(power), lowest = 0xc2fc0000u; /* bits of -126 */
  float bounded = mpg_float_from_bits(bits < lowest ? bits : lowest);
  float shifted = bounded + MPG_ROUNDER, rest = bounded - (shifted - MPG_ROUNDER);
  float rest2 = rest * rest;
  float rate = mpg_fma(mpg_fma(0x1.44402p-13f, rest, 0x1.5f48eep-10f), rest2,
                       mpg_fma(0x1.3b2a1cp-7f, rest, 0x1.c6aeccp-5f));
  rate = mpg_fma(rate, rest2, mpg_fma(0x1.ebfbep-3f, rest, 0x1.62e43p-1f));
  float y = mpg_fma(rate, rest, 1.0f);
  y *= mpg_power_of_two((int32_t)(mpg_float_bits(shifted) - 0x4b400000u));
  float above = power < -126.0f ? 0.0f : y;
  return x > 0.0f ? 1.0f - above : above;
}

/* Sine and cosine are accurate only for |x| up to this limit. Callers use the C library for larger
 * and non-finite arguments. */
#define MPG_TRIG_LIMIT 8192.0f
/* Splits x into quarter * pi / 2 + r - over with |r| <= pi / 4, where `over` approximates the
 * rounding error of r. Returns r. */
MPG_INLINE float mpg_quarter_turns(float x, uint32_t *quarter, float *over) {
  float shifted = mpg_fma(x, 0x1.45f306p-1f, MPG_ROUNDER), whole = shifted - MPG_ROUNDER;
  *quarter = mpg_float_bits(shifted);
  /* pi / 2 in four parts. The first three have 8 to 11 bits, so their products are exact. */
  float high = mpg_fma(whole, -0x1.92p+0f, x);
  high = mpg_fma(whole, -0x1.fb4p-12f, high);
  float r = mpg_fma(whole, -0x1.444p-24f, high);
  *over = mpg_fma(whole, 0x1.68c234p-39f, mpg_fma(whole, 0x1.444p-24f, r - high));
  return r;
}
/* Returns sin(r - over + quarter * pi / 2). */
MPG_INLINE float mpg_sine_or_cosine(float r, float over, uint32_t quarter) {
  float s = r * r;
  /* Approximates r - sin(r), which is then subtracted from r, so that zeros keep their sign. */
  float sine = MPG_POLY(mpg_fma, s, 0x1.9955aep-13f, -0x1.11077cp-7f, 0x1.555546p-3f);
  float cosine = MPG_POLY(mpg_fma, s, 0x1.99e0eep-16f, -0x1.6c0c1ap-10f, 0x1.55554ap-5f, -0.5f);
  sine = r - mpg_fma(sine * s, r, over);
  cosine = 1.0f + mpg_fma(cosine, s, r * over);
  float value = (int32_t)(quarter << 31) < 0 ? cosine : sine; /* uses the sign bit: no branch */
  return mpg_float_from_bits(mpg_float_bits(value) ^ (quarter & 2) << 30);
}
MPG_INLINE float mpg_sinf_limited(float x) {
  uint32_t quarter;
  float over, r = mpg_quarter_turns(x, &quarter, &over);
  return mpg_sine_or_cosine(r, over, quarter);
}
MPG_INLINE float mpg_cosf_limited(float x) {
  uint32_t quarter;
  float over, r = mpg_quarter_turns(x, &quarter, &over);
  return mpg_sine_or_cosine(r, over, quarter + 1);
}

#endif
