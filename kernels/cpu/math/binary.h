/* Binary ops shared with other kernels. Threads: same rules as for kernels (cpu.h). */
#ifndef KERNELS_CPU_MATH_BINARY_H
#define KERNELS_CPU_MATH_BINARY_H

#include "kernels/cpu/cpu.h"

/* Leaky relu on floats: out = a if a > 0, else a * b, with b broadcast to a's shape. */
void mpg_cpu_leak(const mpg_kernel_call *call, const mpg_view *a, const mpg_view *b,
                  const mpg_view *out) MPG_PER_ISA(mpg_cpu_leak);

#endif
