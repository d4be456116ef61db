/* Building blocks for the formulas in binary.def, for every backend. These functions are stateless
 * and may be called from any thread. */
#ifndef KERNELS_COMMON_BINARY_H
#define KERNELS_COMMON_BINARY_H

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"
#include "kernels/common/unary.h"
#include "kernels/common/vector_math_mixed.h"

/* Remainder with the sign of the divisor, as in Python. Returns 0 for a divisor of 0. */
#define REMAINDER(T, operation)                      \
  MPG_HOST_DEVICE T remainder_of_##T(T x, T y) {     \
    T r = y == 0 ? 0 : (T)(operation);               \
    return r != 0 && (r < 0) != (y < 0) ? r + y : r; \
  }
REMAINDER(float, fmodf(x, y))
REMAINDER(double, fmod(x, y))
REMAINDER(int32_t, y == -1 ? 0 : x % y)
REMAINDER(int64_t, y == -1 ? 0 : x % y)

/* Integer power. For a negative exponent, returns 0 unless the base is 1, -1 or 0. Base 0 then
 * gives the smallest integer, because converting infinity to an integer does. */
#define INTEGER_POWER(T, U, lowest)          \
  MPG_HOST_DEVICE T power_of_##T(T x, T y) { \
    if (y < 0) {                             \
      if (x == 1) return 1;                  \
      if (x == -1) return y & 1 ? -1 : 1;    \
      return x == 0 ? lowest : 0;            \
    }                                        \
    U result = 1, base = (U)x;               \
    for (; y; y >>= 1, base *= base)         \
      if (y & 1) result *= base;             \
    return (T)result;                        \
  }
INTEGER_POWER(int32_t, uint32_t, INT32_MIN)
INTEGER_POWER(int64_t, uint64_t, INT64_MIN)

/* Least common multiple, which wraps around if it is too large; 0 if an operand is 0. */
#define LEAST_COMMON_MULTIPLE(T, U)                                          \
  MPG_HOST_DEVICE T multiple_of_##T(T x, T y) {                              \
    U a = x < 0 ? (U)0 - (U)x : (U)x, b = y < 0 ? (U)0 - (U)y : (U)y, u = a; \
    if (x == 0 || y == 0) return 0;                                          \
    for (U v = b; v;) {                                                      \
      U rest = u % v;                                                        \
      u = v;                                                                 \
      v = rest;                                                              \
    }                                                                        \
    return (T)(a / u * b);                                                   \
  }
LEAST_COMMON_MULTIPLE(int32_t, uint32_t)
LEAST_COMMON_MULTIPLE(int64_t, uint64_t)

/* atan2(y, x): the arctangent of the smaller magnitude over the larger one, which is then reflected
 * into the point's octant. */
MPG_HOST_DEVICE float angle_of_float(float y, float x) {
  float a = fabsf(y), b = fabsf(x), least = a < b ? a : b, most = a < b ? b : a;
  float ratio = least == most ? (float)(most != 0) : least / most;
  float angle = mpg_atanf(ratio);
  angle = a > b ? 1.57079632679489662f - angle : angle;
  angle = copysignf(1, x) < 0 ? 3.14159265358979324f - angle : angle;
  return x != x || y != y ? x + y : copysignf(angle, y);
}

/* x * 2^y. Larger exponents are clamped because they give the same result. The double version
 * splits the exponent, because 2^y may overflow although the result does not. It rounds the integer
 * part such that the product with the power of the rest is no further from 1 than x is. */
MPG_HOST_DEVICE float ldexp_of_float(float x, float y) {
  double exponent = y > 1000 ? 1000 : y < -1000 ? -1000 : (double)y;
  return (float)((double)x * exp2(exponent));
}
MPG_HOST_DEVICE double ldexp_of_double(double x, double y) {
  double exponent = y > 5000 ? 5000 : y < -5000 ? -5000 : y;
  double whole = fabs(x) > 1 ? ceil(exponent) : floor(exponent);
  return y != y ? x + y : ldexp(x * exp2(exponent - whole), (int)whole);
}

MPG_HOST_DEVICE float smooth_l1_of_float(float x, float sigma) {
  float s = sigma * sigma, m = fabsf(x);
  return m < 1 / s ? 0.5f * s * x * x : m - 0.5f / s;
}
MPG_HOST_DEVICE double smooth_l1_of_double(double x, double sigma) {
  double s = sigma * sigma, m = fabs(x);
  return m < 1 / s ? 0.5 * s * x * x : m - 0.5 / s;
}

#endif
