/* Building blocks for the formulas in unary.def, for every backend. These functions are stateless
 * and may be called from any thread. */
#ifndef KERNELS_COMMON_UNARY_H
#define KERNELS_COMMON_UNARY_H

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"
#include "kernels/common/vector_math_mixed.h"

#define SELU_ALPHA 1.6732632423543772848170429916717
#define SELU_SCALE 1.0507009873554804934193349852946
#define ROOT_HALF 0.70710678118654752440
/* Clamps x to [0, 1]. NaN stays NaN. */
MPG_HOST_DEVICE float unit_of_float(float x) { return x <= 0 ? 0 : x >= 1 ? 1 : x; }
MPG_HOST_DEVICE double unit_of_double(double x) { return x <= 0 ? 0 : x >= 1 ? 1 : x; }
/* Clips an integer. The bounds lose their fractions, and NaN is no bound. */
MPG_HOST_DEVICE int64_t mpg_clip_whole(int64_t x, double low, double high) {
  if (low >= -0x1p63 && x < (low < 0x1p63 ? (int64_t)low : INT64_MAX))
    return low < 0x1p63 ? (int64_t)low : INT64_MAX;
  if (high < 0x1p63 && x > (high >= -0x1p63 ? (int64_t)high : INT64_MIN))
    return high >= -0x1p63 ? (int64_t)high : INT64_MIN;
  return x;
}

/* GELU by tanh is x * sigmoid(u), because (1 + tanh(v)) / 2 is sigmoid(2 v). u is a polynomial of
 * x, in float (F) and double (D), and SLOPE is its derivative. */
#define GELU_TANH_F(x) ((x) * (1.5957691216057307f + 0.07135481627260025f * (x) * (x)))
#define GELU_TANH_D(x) ((x) * (1.5957691216057307117597842397375 + 0.07135481627260025 * (x) * (x)))
#define GELU_TANH_SLOPE_F(x) (1.5957691216057307f + 0.21406444881780076f * (x) * (x))
#define GELU_TANH_SLOPE_D(x) (1.5957691216057307117597842397375 + 0.21406444881780076 * (x) * (x))
/* Returns the derivative of x * s(u(x)), where s is the sigmoid of u and `slope` the derivative of
 * u. Where s is 0 or 1, x * s * (1 - s) * slope is 0 although x * slope may be infinite. */
MPG_HOST_DEVICE float gated_slope_of_float(float x, float s, float slope) {
  float bend = s * (1 - s);
  return bend == 0 ? s : s + x * bend * slope;
}
MPG_HOST_DEVICE double gated_slope_of_double(double x, double s, double slope) {
  double bend = s * (1 - s);
  return bend == 0 ? s : s + x * bend * slope;
}

/* Derivative of GELU in float (F) and double (D). */
#define GELU_SLOPE_F(x) \
  (mpg_normal_cdff(x) + (x) * 0.39894228040143267794f * mpg_exp_nonpositive(-0.5f * (x) * (x)))
#define GELU_SLOPE_D(x) \
  (0.5 * (1 + mpg_erf((x) * ROOT_HALF)) + (x) * 0.39894228040143267794 * mpg_exp(-0.5 * (x) * (x)))

/* Returns the inverse of erf: Winitzki's approximation, refined by three steps of Halley's
 * method. */
MPG_HOST_DEVICE double inverse_erf(double y) {
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? copysign((double)INFINITY, y) : (double)NAN;
  double w = -log1p(-y * y), b = 4.330746750799873 + 0.5 * -w;
  double x = copysign(sqrt(sqrt(b * b + w * 6.802721088435375) - b), y);
  for (int i = 0; i < 3; i++) {
    double error =
        (fabs(y) < 0.5 ? erf(x) - y : ((1 - fabs(y)) - erfc(fabs(x))) * (y < 0 ? -1 : 1)) *
        0.88622692545275801365 * exp(x * x);
    x -= error / (1 + x * error);
  }
  return x;
}

#ifdef __CUDACC__
#define mpg_erfinvf(x) ((float)inverse_erf(x))
#endif

/* Returns log |gamma(x)|. Uses lgamma_r, because lgamma writes the global variable signgam, which
 * is a data race between threads. */
MPG_HOST_DEVICE double log_gamma(double x) {
#ifdef __CUDA_ARCH__
  return lgamma(x);
#else
  int sign;
  return lgamma_r(x, &sign);
#endif
}

/* Derivatives of gammaln. The recurrence relation increases x to at least 10, where the asymptotic
 * series is accurate. */
MPG_HOST_DEVICE double digamma_of_positive(double x) {
  double shift = 0;
  for (; x < 10; x += 1) shift -= 1 / x;
  double s = 1 / (x * x);
  return shift + log(x) - 0.5 / x -
         s * (1.0 / 12 -
              s * (1.0 / 120 -
                   s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760))))));
}
MPG_HOST_DEVICE double digamma(double x) {
  if (x <= 0 && x == floor(x)) return (double)INFINITY; /* infinity at the poles, as in MXNet */
  return x < 0 ? digamma_of_positive(1 - x) - M_PI / tan(M_PI * x) : digamma_of_positive(x);
}
MPG_HOST_DEVICE double trigamma_of_positive(double x) {
  double shift = 0;
  for (; x < 10; x += 1) shift += 1 / (x * x);
  double s = 1 / (x * x);
  return shift + 1 / x + s / 2 +
         s / x * (1.0 / 6 - s * (1.0 / 30 - s * (1.0 / 42 - s * (1.0 / 30 - s * (5.0 / 66)))));
}
MPG_HOST_DEVICE double trigamma(double x) {
  if (x <= 0 && x == floor(x)) return (double)INFINITY;
  if (x > 0) return trigamma_of_positive(x);
  double s = sin(M_PI * x);
  return M_PI * M_PI / (s * s) - trigamma_of_positive(1 - x);
}

#endif
