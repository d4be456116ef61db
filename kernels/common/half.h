/* Conversion of float16 and bfloat16 scalars to and from float, rounding to nearest even.
 * kernels/cpu/convert.h converts blocks of elements and all other dtypes. These functions are
 * stateless and may be called from any thread.
 */
#ifndef KERNELS_COMMON_HALF_H
#define KERNELS_COMMON_HALF_H

#include <stdint.h>
#include <string.h>

#include "base/host_device.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

MPG_HOST_DEVICE float mpg_float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
MPG_HOST_DEVICE uint32_t mpg_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

MPG_HOST_DEVICE float mpg_bfloat16_to_float(uint16_t half) {
  return mpg_float_from_bits((uint32_t)half << 16);
}

MPG_HOST_DEVICE uint16_t mpg_float_to_bfloat16(float value) {
  uint32_t bits = mpg_float_bits(value);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = bits >> 16 | 0x40; /* sets the quiet bit, so that NaN does not become infinity */
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

MPG_HOST_DEVICE float mpg_half_to_float(uint16_t half) {
#ifdef __F16C__
  return _cvtsh_ss(half);
#else
  /* Multiplying by 2^112 corrects the exponent bias and normalizes subnormals. */
  uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
  float value = mpg_float_from_bits(magnitude) * 0x1p112f;
  uint32_t bits = mpg_float_bits(value);
  uint32_t special = magnitude | 0x7f800000;
  if (magnitude >= 0x0f800000) bits = special;
  if (magnitude > 0x0f800000) bits |= 0x00400000;
  return mpg_float_from_bits(bits | (uint32_t)(half & 0x8000) << 16);
#endif
}

MPG_HOST_DEVICE uint16_t mpg_float_to_half(float value) {
#ifdef __F16C__
  return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
  uint32_t bits = mpg_float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  /* 65520 and above round to infinity. */
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x38800000) /* subnormal result: adding 0.5f rounds to a multiple of 2^-24 */
    return (uint16_t)(sign | (mpg_float_bits(mpg_float_from_bits(magnitude) + 0.5f) - 0x3f000000));
  return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
#endif
}

#endif
