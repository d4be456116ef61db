/* Element types of arrays in GPU memory, and conversions between them. Code that NVRTC compiles
 * (generated.h) includes this file, so it must not include system headers. */
#ifndef KERNELS_CUDA_ELEMENTS_H
#define KERNELS_CUDA_ELEMENTS_H

#include "kernels/common/half.h"

/* Qualifiers of member functions; free functions use MPG_HOST_DEVICE. */
#define MPG_MEMBER __host__ __device__ __forceinline__

/* Element types: float, double, mpg_half, mpg_bfloat16, uint8_t, int8_t, int32_t, int64_t,
 * mpg_boolean. Kernels compute in float, double, int32_t or int64_t. mpg_to<T>(x) converts between
 * any two of the types, with the same results as kernels/cpu/convert.c. */
struct mpg_half {
  uint16_t bits;
};
struct mpg_bfloat16 {
  uint16_t bits;
};
struct mpg_boolean {
  uint8_t bits;
};

template <class T>
struct mpg_element {
  typedef T compute;
};
template <>
struct mpg_element<mpg_half> {
  typedef float compute;
};
template <>
struct mpg_element<mpg_bfloat16> {
  typedef float compute;
};
template <>
struct mpg_element<uint8_t> {
  typedef int32_t compute;
};
template <>
struct mpg_element<int8_t> {
  typedef int32_t compute;
};
template <>
struct mpg_element<mpg_boolean> {
  typedef int32_t compute;
};
/* Type in which kernels compute values of type T: the smallest of float, double, int32_t and
 * int64_t that can represent all values of T. */
template <class T>
using mpg_compute_t = typename mpg_element<T>::compute;

template <class T>
struct mpg_convert { /* converts float, double, int32_t or int64_t to T */
  template <class C>
  static MPG_MEMBER T from(C value) {
    return (T)value;
  }
};
template <class T>
MPG_HOST_DEVICE T mpg_widen(T value) {
  return value;
}
MPG_HOST_DEVICE float mpg_widen(mpg_half value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return mpg_half_to_float(value.bits);
#endif
}
MPG_HOST_DEVICE float mpg_widen(mpg_bfloat16 value) { return mpg_bfloat16_to_float(value.bits); }
MPG_HOST_DEVICE int32_t mpg_widen(mpg_boolean value) { return value.bits != 0; }
template <>
struct mpg_convert<mpg_half> {
  static MPG_MEMBER uint32_t pair(float first, float second) {
#ifdef __CUDA_ARCH__
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return mpg_float_to_half(first) | (uint32_t)mpg_float_to_half(second) << 16;
#endif
  }
  template <class C>
  static MPG_MEMBER mpg_half from(C value) {
    return {(uint16_t)pair((float)value, 0)};
  }
};
template <>
struct mpg_convert<mpg_bfloat16> {
  static MPG_MEMBER uint32_t pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 /* converts NaN to 0x7fff */
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return mpg_float_to_bfloat16(first) | (uint32_t)mpg_float_to_bfloat16(second) << 16;
#endif
  }
  template <class C>
  static MPG_MEMBER mpg_bfloat16 from(C value) {
    return {(uint16_t)pair((float)value, 0)};
  }
};
template <>
struct mpg_convert<mpg_boolean> {
  template <class C>
  static MPG_MEMBER mpg_boolean from(C value) {
    mpg_boolean result;
    result.bits = value != 0;
    return result;
  }
};
/* Floats are first converted to int32_t, so that values outside 8 bits wrap around instead of being
 * undefined. */
template <>
struct mpg_convert<uint8_t> {
  static MPG_MEMBER uint8_t from(float value) { return (uint8_t)(int32_t)value; }
  static MPG_MEMBER uint8_t from(double value) { return (uint8_t)(int32_t)value; }
  template <class C>
  static MPG_MEMBER uint8_t from(C value) {
    return (uint8_t)value;
  }
};
template <>
struct mpg_convert<int8_t> {
  static MPG_MEMBER int8_t from(float value) { return (int8_t)(int32_t)value; }
  static MPG_MEMBER int8_t from(double value) { return (int8_t)(int32_t)value; }
  template <class C>
  static MPG_MEMBER int8_t from(C value) {
    return (int8_t)value;
  }
};
template <class T, class S>
MPG_HOST_DEVICE T mpg_to(S value) {
  return mpg_convert<T>::from(mpg_widen(value));
}

/* Converts two floats to the 16-bit type T and packs them, the first in the low 16 bits. */
template <class T>
MPG_HOST_DEVICE uint32_t mpg_halves(float first, float second) {
  return mpg_convert<T>::pair(first, second);
}

#endif
