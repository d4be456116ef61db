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

MPG_HOST_DEVICE float smooth_l1_of_float(float x, float sigma) {
  float s = sigma * sigma, m = fabsf(x);
  return m < 1 / s ? 0.5f * s * x * x : m - 0.5f / s;
}
MPG_HOST_DEVICE double smooth_l1_of_double(double x, double sigma) {
  double s = sigma * sigma, m = fabs(x);
  return m < 1 / s ? 0.5 * s * x * x : m - 0.5 / s;
}

#endif
