/* Ops of two arrays that other files' kernels are made of. Any thread; see cpu.h. */
#ifndef KERNELS_CPU_MATH_BINARY_H
#define KERNELS_CPU_MATH_BINARY_H

#include "kernels/cpu/cpu.h"

#define mpg_cpu_leak MPG_CPU_NAME(leak)
/* out = a where a is above 0, else a times b, which is broadcast to a's shape. Floats. */
void mpg_cpu_leak(const mpg_kernel_call *call, const mpg_view *a, const mpg_view *b,
                  const mpg_view *out);

#endif
