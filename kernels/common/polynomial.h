/* MPG_POLY(fma, x, c9, ..., c0): evaluates a polynomial in x by Horner's rule, with 2 to 20
 * coefficients, the highest power first. fma(a, b, c) computes a * b + c in x's type. */
#ifndef KERNELS_COMMON_POLYNOMIAL_H
#define KERNELS_COMMON_POLYNOMIAL_H

#define MPG_POLY(fma, x, ...)                                                                      \
  MPG_POLY_NAME(__VA_ARGS__, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, ) \
  (fma, x, __VA_ARGS__)
#define MPG_POLY_NAME(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, count, ...) \
  MPG_POLY_##count
#define MPG_POLY_2(fma, x, a, b) fma(a, x, b)
#define MPG_POLY_3(fma, x, a, b, ...) MPG_POLY_2(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_4(fma, x, a, b, ...) MPG_POLY_3(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_5(fma, x, a, b, ...) MPG_POLY_4(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_6(fma, x, a, b, ...) MPG_POLY_5(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_7(fma, x, a, b, ...) MPG_POLY_6(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_8(fma, x, a, b, ...) MPG_POLY_7(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_9(fma, x, a, b, ...) MPG_POLY_8(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_10(fma, x, a, b, ...) MPG_POLY_9(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_11(fma, x, a, b, ...) MPG_POLY_10(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_12(fma, x, a, b, ...) MPG_POLY_11(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_13(fma, x, a, b, ...) MPG_POLY_12(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_14(fma, x, a, b, ...) MPG_POLY_13(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_15(fma, x, a, b, ...) MPG_POLY_14(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_16(fma, x, a, b, ...) MPG_POLY_15(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_17(fma, x, a, b, ...) MPG_POLY_16(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_18(fma, x, a, b, ...) MPG_POLY_17(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_19(fma, x, a, b, ...) MPG_POLY_18(fma, x, fma(a, x, b), __VA_ARGS__)
#define MPG_POLY_20(fma, x, a, b, ...) MPG_POLY_19(fma, x, fma(a, x, b), __VA_ARGS__)

#endif
