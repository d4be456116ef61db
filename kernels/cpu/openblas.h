/* OpenBLAS as CPU kernels use it: one thread per call; callers share the work out themselves.
 * The table is filled at the first call and constant afterwards. Any thread may call.
 */
#ifndef KERNELS_CPU_OPENBLAS_H
#define KERNELS_CPU_OPENBLAS_H

#include "kernels/cpu/cpu.h"

typedef struct mpg_openblas { /* CBLAS with 32-bit integers: order 101 row-major; 111 as is, 112 transposed */
  void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                int ldb, float beta, float *c, int ldc);
  void (*dgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha, const double *a, int lda,
                const double *b, int ldb, double beta, double *c, int ldc);
} mpg_openblas;

#define mpg_cpu_openblas MPG_CPU_NAME(openblas)
const mpg_openblas *mpg_cpu_openblas(void); /* NULL: not there, or turned off by MPGLUON_OPENBLAS=0 */

#endif
