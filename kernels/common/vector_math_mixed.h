/* Float functions without branches that compute in double, with polynomials just long enough for
 * float precision. The maximum error is 0.51 ULPs. On GPUs, the names map to CUDA's functions.
 * These functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_COMMON_VECTOR_MATH_MIXED_H
#define KERNELS_COMMON_VECTOR_MATH_MIXED_H

#include "kernels/common/vector_math_double.h"

#define MPG_TAN_LIMIT 0x1p20f     /* mpg_tanf_limited is accurate for |x| up to this limit */
#define MPG_GAMMALN_LIMIT (-2.0f) /* mpg_gammalnf_limited is accurate for x above this limit */

#ifdef __CUDACC__
#define mpg_powf(x, y) powf(x, y)
#define mpg_tanf_limited(x) tanf(x)
#define mpg_asinf(x) asinf(x)
#define mpg_acosf(x) acosf(x)
#define mpg_atanf(x) atanf(x)
#define mpg_asinhf(x) asinhf(x)
#define mpg_acoshf(x) acoshf(x)
#define mpg_atanhf(x) atanhf(x)
#define mpg_cbrtf(x) cbrtf(x)
#define mpg_rcbrtf(x) (1.0f / cbrtf(x))
#define mpg_gammaf(x) tgammaf(x)
#define mpg_gammalnf_limited(x) ((float)lgamma(x))
#else

/* Returns e ln 2 + log(1 + f) for f and e from mpg_double_log_parts. The relative error is 2^-43.
 */
MPG_INLINE double mpg_short_log_of_parts(double f, double e) {
  double s = f / (2.0 + f), z = s * s;
  double q = MPG_POLY(mpg_fma_double, z, 0x1.8c9ae3387ea30p-3, 0x1.c67a06c4c8684p-3,
                      0x1.249325b9dada7p-2, 0x1.999998c863873p-2, 0x1.5555555565332p-1);
  return mpg_fma_double(e, MPG_DOUBLE_LN2, mpg_fma_double(s * z, q, s + s));
}
MPG_INLINE double mpg_short_log(double x) { /* log(x) for a positive normal x */
  double e, f = mpg_double_log_parts(x, &e);
  return mpg_short_log_of_parts(f, e);
}
/* Returns log(1 + x) for 0 <= x < 2^1000. The relative error is 2^-43. */
MPG_INLINE double mpg_short_log1p(double x) {
  double u = 1.0 + x, e;
  double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
  double f = mpg_double_log_parts(u, &e); /* u = 2^e (1 + f) */
  double scale =
      mpg_double_from_bits(mpg_double_bits(1.0 + f) - mpg_double_bits(u) + 0x3ff0000000000000u);
  return mpg_short_log_of_parts(mpg_fma_double(lost, scale, f), e);
}

/* Returns exp(x) with a relative error of 2^-34. If exp(x) is outside the range of floats, the
 * result is imprecise but also outside that range. */
MPG_INLINE double mpg_short_exp(double x) {
  double magnitude = fabs(x), bounded = copysign(magnitude > 200.0 ? 200.0 : magnitude, x);
  double shifted = mpg_fma_double(bounded, MPG_DOUBLE_LOG2_E, MPG_DOUBLE_ROUNDER);
  double r = mpg_fma_double(shifted - MPG_DOUBLE_ROUNDER, -MPG_DOUBLE_LN2, bounded);
  double y = MPG_POLY(mpg_fma_double, r, 0x1.a17ea987d8dd3p-13, 0x1.6da820aa9c18cp-10,
                      0x1.1110a5b46901ap-7, 0x1.555463a9ca599p-5, 0x1.5555557eb07e9p-3,
                      0x1.0000005d1883bp-1, 0x1.fffffffff60b8p-1, 0x1.ffffffffa65c7p-1);
  return y * mpg_double_power_of_two(mpg_double_bits(shifted) - 0x4338000000000000u);
}

MPG_POWER_ENDS(mpg_power_ends, float, fabsf, truncf, copysignf)

/* Same as C's powf(x, y), including signs, zeros, infinities and NaN. */
MPG_INLINE float mpg_powf(float x, float y) {
  float magnitude = fabsf(x);
  double logarithm = mpg_short_log((double)magnitude);
  logarithm = magnitude == 0.0f ? -(double)INFINITY : logarithm;
  logarithm = magnitude < INFINITY ? logarithm : (double)magnitude; /* also keeps NaN */
  float result = (float)mpg_short_exp((double)y * logarithm);
  return mpg_power_ends(x, y, result);
}

MPG_INLINE float mpg_tanf_limited(float x) {
  double wide = x, shifted = mpg_fma_double(wide, 0x1.45f306dc9c883p-1, MPG_DOUBLE_ROUNDER);
  double whole = shifted - MPG_DOUBLE_ROUNDER;
  /* Subtracts `whole` times pi / 2 in two parts. The product with the high part is exact. */
  double r = mpg_fma_double(whole, -0x1.921fb544p+0, wide);
  r = mpg_fma_double(whole, -0x1.0b4611a626331p-34, r);
  double s = r * r;
  double sine = MPG_POLY(mpg_fma_double, s, 0x1.6db3cb206f1f1p-19, -0x1.a0138800f2bbbp-13,
                         0x1.11110dd7dfbddp-7, -0x1.5555555454891p-3);
  double cosine = MPG_POLY(mpg_fma_double, s, 0x1.9a612fd930abbp-16, -0x1.6c0ddd6ac2f92p-10,
                           0x1.55554c7bc269ap-5, -0x1.fffffffa7e2c9p-2, 1.0);
  sine = mpg_fma_double(sine * s, r, r);
  int odd = (int64_t)(mpg_double_bits(shifted) << 63) < 0;
  double above = odd ? cosine : sine, below = odd ? -sine : cosine;
  return x == 0.0f ? x : (float)(above / below);
}

MPG_INLINE float mpg_atanf(float x) {
  float magnitude = fabsf(x);
  int large = magnitude > 1.0f;
  double z = large ? 1.0 / (double)magnitude : (double)magnitude, s = z * z;
  double q = MPG_POLY(mpg_fma_double, s, -0x1.0252c16a5cbffp-10, 0x1.a6f5c36aea5f5p-8,
                      -0x1.4432a7b51951ep-6, 0x1.3f13dcbaa5bd8p-5, -0x1.db908149ee79fp-5,
                      0x1.30a0e2cadc9b6p-4, -0x1.725cf41d8738ap-4, 0x1.c6e1f725e73d6p-4,
                      -0x1.24908d0031774p-3, 0x1.99998f3fc6111p-3, -0x1.5555555037e3bp-2);
  double y = mpg_fma_double(z * s, q, z);
  return copysignf((float)(large ? MPG_HALF_PI - y : y), x);
}

/* Returns arcsin |x| if |x| <= 1/2, else half of arccos |x|. */
MPG_INLINE double mpg_arc_reduced(float magnitude) {
  double wide = magnitude, half = 0.5 - 0.5 * wide;
  double z = magnitude > 0.5f ? sqrt(half) : wide, s = magnitude > 0.5f ? half : wide * wide;
  double q = MPG_POLY(mpg_fma_double, s, 0x1.ff22cb2fd8c1dp-6, 0x1.550b0ef0bbf2fp-7,
                      0x1.839f0c75a36f1p-6, 0x1.efd4ac63df8e0p-6, 0x1.6dc1accf8b73bp-5,
                      0x1.33331ccd18001p-4, 0x1.5555555ce4160p-3);
  return mpg_fma_double(z * s, q, z);
}
MPG_INLINE float mpg_asinf(float x) {
  float magnitude = fabsf(x);
  double y = mpg_arc_reduced(magnitude);
  return copysignf((float)(magnitude > 0.5f ? MPG_HALF_PI - 2.0 * y : y), x);
}
MPG_INLINE float mpg_acosf(float x) {
  float magnitude = fabsf(x);
  double y = mpg_arc_reduced(magnitude);
  double near = x > 0.0f ? 2.0 * y : 2.0 * MPG_HALF_PI - 2.0 * y;
  double middle = MPG_HALF_PI - (x > 0.0f ? y : -y);
  return (float)(magnitude > 0.5f ? near : middle);
}

MPG_INLINE float mpg_asinhf(float x) {
  double wide = fabsf(x), square = wide * wide;
  float y = (float)mpg_short_log1p(wide + square / (1.0 + sqrt(1.0 + square)));
  return copysignf(fabsf(x) < INFINITY ? y : fabsf(x), x);
}
MPG_INLINE float mpg_acoshf(float x) {
  double above = (double)x - 1.0;
  float y = (float)mpg_short_log1p(above + sqrt(above * ((double)x + 1.0)));
  y = x < 1.0f ? NAN : y;
  return x < INFINITY ? y : x;
}
MPG_INLINE float mpg_atanhf(float x) {
  double wide = fabsf(x);
  float y = (float)(0.5 * mpg_short_log1p(2.0 * wide / (1.0 - wide)));
  y = wide == 1.0 ? INFINITY : y;
  return copysignf(wide <= 1.0 ? y : NAN, x);
}

/* Returns scaled^(-1/3). Estimates it from the float's bits and refines the estimate by two steps
 * of a power series. Callers scale a small |x| by 2^24 to avoid subnormals, which scales the result
 * by 2^-8. */
MPG_INLINE double mpg_inverse_cube_root(float scaled) {
  float third = (float)(int32_t)mpg_float_bits(scaled) * (1.0f / 3);
  float y = mpg_float_from_bits((uint32_t)(0x54a20000 - (int32_t)third));
  float h = 1.0f - scaled * y * y * y;
  y = mpg_fma(y * h, mpg_fma(h, 2.0f / 9, 1.0f / 3), y);
  double d = y, rest = 1.0 - (double)scaled * d * d * d;
  return mpg_fma_double(d * rest, mpg_fma_double(rest, 2.0 / 9, 1.0 / 3), d);
}
MPG_INLINE float mpg_cbrtf(float x) {
  float magnitude = fabsf(x);
  int small = magnitude < 0x1p-100f;
  float scaled = small ? magnitude * 0x1p24f : magnitude;
  double root = mpg_inverse_cube_root(scaled);
  float y = copysignf((float)((double)scaled * root * root * (small ? 0x1p-8 : 1.0)), x);
  return ((magnitude > 0.0f) & (magnitude < INFINITY)) ? y : x;
}
MPG_INLINE float mpg_rcbrtf(float x) {
  float magnitude = fabsf(x);
  int small = magnitude < 0x1p-100f;
  double root = mpg_inverse_cube_root(small ? magnitude * 0x1p24f : magnitude);
  float y = copysignf((float)(root * (small ? 0x1p8 : 1.0)), x);
  return ((magnitude > 0.0f) & (magnitude < INFINITY)) ? y : 1.0f / x;
}

/* Returns erfinv(x) = x f(w) with w = -log(1 - x^2). f is a polynomial in w or, for larger w, in
 * sqrt(w). */
MPG_INLINE float mpg_erfinvf(float x) {
  double wide = x, w = -mpg_short_log(mpg_fma_double(-wide, wide, 1.0)), t = sqrt(w);
  double near = MPG_POLY(mpg_fma_double, w, -0x1.4569c9873bfb5p-36, 0x1.74110c394c762p-31,
                         -0x1.5e80833bcaa0bp-27, 0x1.42ab97c485411p-24, -0x1.a1936b3b38b09p-23,
                         -0x1.795c60a58847bp-21, 0x1.b3da8f8a2b3c9p-20, 0x1.899c0ce02aab8p-15,
                         -0x1.0cca75cce4ccfp-13, -0x1.3210ac7c4bbcap-9, 0x1.7a72fa1c4c5bdp-7,
                         0x1.db29faec4321bp-3, 0x1.c5bf891bc7ab1p-1);
  double far = MPG_POLY(mpg_fma_double, t, -0x1.2f8c5de87ad17p-15, 0x1.4a4cffa7f0ed4p-10,
                        -0x1.41cf83e482f43p-6, 0x1.71318196e4e16p-3, -0x1.139dc1506e43cp+0,
                        0x1.16ff0761dc6acp+2, -0x1.8214c8efaeb81p+3, 0x1.65eed4852e2f7p+4,
                        -0x1.a3d83aaa51767p+4, 0x1.21b8852fc16c4p+4, -0x1.2471d363f4bc8p+2);
  float y = (float)(wide * (w < 5.5 ? near : far));
  y = fabsf(x) == 1.0f ? copysignf(INFINITY, x) : y;
  return fabsf(x) <= 1.0f ? y : NAN;
}

/* Returns log |gamma(x)| for x > -2. The absolute error is 2^-32. Near the zeros 1 and 2, the
 * relative error is 2^-32. For x < 3, evaluates a polynomial at y = x, x + 1 or x + 3 in [1, 3) and
 * subtracts the logarithm of gamma(y) / gamma(x), which is a product of up to three factors. For
 * larger x, uses Stirling's formula. */
MPG_INLINE double mpg_short_gammaln(double x) {
  int large = x >= 3.0;
  double y = x < 0.0 ? x + 3.0 : x < 1.0 ? x + 1.0 : x;
  double factors = x < 0.0 ? x * (x + 1.0) * (x + 2.0) : x < 1.0 || large ? x : 1.0;
  double size = fabs(factors), logarithm = mpg_short_log(size);
  logarithm = size < 0x1p-1000 ? -(double)INFINITY : logarithm;
  double v = y - 2.0;
  double p = MPG_POLY(
      mpg_fma_double, v, 0x1.5d19f1efdd0f7p-18, -0x1.44a3c49798b24p-17, 0x1.27bf32a7f7206p-20,
      -0x1.e9401deb032dcp-18, 0x1.7bde830d3d656p-15, -0x1.80b81f92abc9ap-14, 0x1.76d337b672f9cp-13,
      -0x1.a583f72a17785p-12, 0x1.e07feb35466e9p-11, -0x1.146c47fe236c4p-9, 0x1.4794a8e71744bp-8,
      -0x1.95cd7d28d0476p-7, 0x1.0e0ca2807680fp-5, -0x1.9ae6512eea43dp-4, 0x1.b0ee6070b98e8p-2);
  double near = mpg_fma_double((y - 1.0) * v, p, 0.0 - logarithm); /* avoids -0 */
  double inverse = 1.0 / x, u = inverse * inverse;
  double q = MPG_POLY(mpg_fma_double, u, 0x1.08851f1c71bfcp-11, -0x1.295dcca766b76p-11,
                      0x1.9f8e7c324ff5dp-11, -0x1.6c1649269bbe8p-9, 0x1.55555553352ecp-4);
  double far = mpg_fma_double(x - 0.5, logarithm, 0x1.d67f1c864beb5p-1 - x);
  return large ? mpg_fma_double(q, inverse, far) : near;
}
MPG_INLINE float mpg_gammalnf_limited(float x) {
  float y = (float)mpg_short_gammaln((double)x);
  return x < INFINITY ? y : x;
}
/* Returns the gamma function. Negative arguments use the reflection formula
 * pi / (sin(pi x) gamma(1 - x)). */
MPG_INLINE float mpg_gammaf(float x) {
  double wide = x, above = x < 0.0f ? 1.0 - wide : wide;
  double g = mpg_short_exp(mpg_short_gammaln(above));
  double shifted = wide + MPG_DOUBLE_ROUNDER, d = wide - (shifted - MPG_DOUBLE_ROUNDER), s = d * d;
  double sine = d * MPG_POLY(mpg_fma_double, s, -0x1.cc9bdc1a0cc82p-8, 0x1.50140e437c257p-4,
                             -0x1.32d12eff6c8e2p-1, 0x1.466bc06ac9f9ep+1, -0x1.4abbce51cb849p+2,
                             0x1.921fb54425688p+1);
  double reflected = 2.0 * MPG_HALF_PI / (sine * g);
  reflected = mpg_double_from_bits(mpg_double_bits(reflected) ^ mpg_double_bits(shifted) << 63);
  float y = (float)(x < 0.0f ? reflected : g);
  y = (((x < 0.0f) & (d == 0.0)) | (x < -0x1p30f)) ? NAN : y;
  y = x == 0.0f ? 1.0f / x : y;
  return x < INFINITY ? y : x;
}

/* mpg_remainderf_limited returns the remainder of x / y with the sign of y. It requires
 * MPG_REMAINDER_NEAR: finite numbers with a quotient below 2^28, for which double is exact. */
#define MPG_REMAINDER_NEAR(x, y) ((fabsf(x) < fabsf(y) * 0x1p28f) & (fabsf(y) < INFINITY))
MPG_INLINE float mpg_remainderf_limited(float x, float y) {
  double quotient = (double)x / (double)y;
  double whole = (quotient + MPG_DOUBLE_ROUNDER) - MPG_DOUBLE_ROUNDER;
  float r = (float)((double)x - whole * (double)y);
  r = r == 0.0f ? copysignf(0.0f, x) : r;
  return ((r != 0.0f) & ((r < 0.0f) != (y < 0.0f))) ? r + y : r;
}

#endif
#endif
