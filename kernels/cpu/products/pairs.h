/* Detects at run time how the processor multiplies pairs of bfloat16 and adds them to float32: with
 * AMX tiles, with AVX512-BF16, or not at all. These functions are stateless and may be called from
 * any thread. */
#ifndef KERNELS_CPU_PRODUCTS_PAIRS_H
#define KERNELS_CPU_PRODUCTS_PAIRS_H

#include "kernels/cpu/cpu.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define MPG_WITH_PAIRS
#if !defined(__clang__) ? __GNUC__ >= 11 : __clang_major__ >= 11 /* older compilers lack tiles */
#define MPG_WITH_TILES
#endif
#endif

typedef enum mpg_pairs { MPG_NO_PAIRS, MPG_PAIRS_IN_VECTORS, MPG_PAIRS_IN_TILES } mpg_pairs;

/* Returns the processor's method for bfloat16 products. With oneDNN, returns the method that oneDNN
 * uses, which the environment variable ONEDNN_MAX_CPU_ISA may limit. */
mpg_pairs mpg_cpu_pairs(void) MPG_PER_ISA(mpg_cpu_pairs);

#endif
