/* OpenBLAS for CPU kernels. OpenBLAS runs single-threaded; callers divide the work among threads.
 * The first call to mpg_cpu_openblas fills the table, which is constant afterward. These functions
 * may be called from any thread.
 */
#ifndef KERNELS_CPU_VENDOR_OPENBLAS_H
#define KERNELS_CPU_VENDOR_OPENBLAS_H

#include "kernels/cpu/cpu.h"

/* CBLAS constants. OpenBLAS is built with 32-bit integers. */
enum {
  MPG_BLAS_ROWS = 101,
  MPG_BLAS_PLAIN = 111,
  MPG_BLAS_TRANSPOSED = 112,
  MPG_BLAS_UPPER = 121,
  MPG_BLAS_LOWER = 122,
  MPG_BLAS_ANY_DIAGONAL = 131,
  MPG_BLAS_LEFT = 141,
  MPG_BLAS_RIGHT = 142
};

/* Functions for one dtype. LAPACK uses Fortran conventions: column-major, arguments by reference,
 * and string lengths after all other arguments. */
#define MPG_OPENBLAS_OF(T)                                                                         \
  void (*gemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, T alpha,          \
               const T *a, int lda, const T *b, int ldb, T beta, T *c, int ldc);                   \
  void (*trmm)(int order, int side, int triangle, int transpose, int diagonal, int m, int n,       \
               T alpha, const T *a, int lda, T *b, int ldb);                                       \
  void (*trsm)(int order, int side, int triangle, int transpose, int diagonal, int m, int n,       \
               T alpha, const T *a, int lda, T *b, int ldb);                                       \
  void (*syrk)(int order, int triangle, int transpose, int n, int k, T alpha, const T *a, int lda, \
               T beta, T *c, int ldc);                                                             \
  void (*potrf)(const char *triangle, const int *n, T *a, const int *lda, int *info, size_t);      \
  void (*potri)(const char *triangle, const int *n, T *a, const int *lda, int *info, size_t);      \
  void (*geqrf)(const int *m, const int *n, T *a, const int *lda, T *tau, T *work,                 \
                const int *work_size, int *info);                                                  \
  void (*orgqr)(const int *m, const int *n, const int *k, T *a, const int *lda, const T *tau,      \
                T *work, const int *work_size, int *info);                                         \
  void (*syevd)(const char *vectors, const char *triangle, const int *n, T *a, const int *lda,     \
                T *values, T *work, const int *work_size, int *places, const int *places_size,     \
                int *info, size_t, size_t);                                                        \
  void (*getrf)(const int *m, const int *n, T *a, const int *lda, int *pivots, int *info);         \
  void (*getri)(const int *n, T *a, const int *lda, const int *pivots, T *work,                    \
                const int *work_size, int *info);                                                  \
  void (*getrs)(const char *transpose, const int *n, const int *columns, const T *a,               \
                const int *lda, const int *pivots, T *b, const int *ldb, int *info, size_t);       \
  void (*gesdd)(const char *vectors, const int *m, const int *n, T *a, const int *lda, T *values,  \
                T *u, const int *ldu, T *vt, const int *ldvt, T *work, const int *work_size,       \
                int *places, int *info, size_t);                                                   \
  void (*geev)(const char *left, const char *right, const int *n, T *a, const int *lda, T *real,   \
               T *imaginary, T *vl, const int *ldvl, T *vr, const int *ldvr, T *work,              \
               const int *work_size, int *info, size_t, size_t);

typedef struct mpg_openblas_f32 {
  MPG_OPENBLAS_OF(float)
} mpg_openblas_f32;
typedef struct mpg_openblas_f64 {
  MPG_OPENBLAS_OF(double)
} mpg_openblas_f64;
#undef MPG_OPENBLAS_OF

typedef struct mpg_openblas {
  mpg_openblas_f32 f32;
  mpg_openblas_f64 f64;
} mpg_openblas;

/* Returns OpenBLAS's functions, or NULL if the library is missing or disabled by
 * MPGLUON_OPENBLAS=0. */
const mpg_openblas *mpg_cpu_openblas(void) MPG_PER_ISA(mpg_cpu_openblas);

#endif
