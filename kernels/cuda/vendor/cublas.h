/* Declarations of the cuBLAS types, constants and functions in use (cublaslt.h declares those of
 * cuBLASLt). They belong to cuBLAS's stable interface, which is identical in versions 12 and 13.
 * Matrices are column-major.
 *
 * cuBLAS is loaded at run time (kernels/cuda/vendor/library.h), not linked, and the build does not
 * need NVIDIA's headers. If MPG_CUBLAS_REAL is defined, the types come from NVIDIA's header, and
 * tests/hostcuda/check_cublas.c checks all other declarations against it.
 */
#ifndef KERNELS_CUDA_VENDOR_CUBLAS_H
#define KERNELS_CUDA_VENDOR_CUBLAS_H

#ifdef MPG_CUBLAS_REAL
#include <cublas_v2.h>
#else
#include <cuda_runtime_api.h>
typedef struct cublasContext *cublasHandle_t;
typedef int cublasStatus_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t;
#endif

#define MPG_CUBLAS_CONSTANTS(X)       \
  X(CUBLAS_STATUS_SUCCESS, 0)         \
  X(CUBLAS_STATUS_NOT_INITIALIZED, 1) \
  X(CUBLAS_STATUS_ALLOC_FAILED, 3)    \
  X(CUBLAS_STATUS_INVALID_VALUE, 7)   \
  X(CUBLAS_SIDE_LEFT, 0)              \
  X(CUBLAS_SIDE_RIGHT, 1)             \
  X(CUBLAS_FILL_MODE_LOWER, 0)        \
  X(CUBLAS_FILL_MODE_UPPER, 1)        \
  X(CUBLAS_OP_N, 0)                   \
  X(CUBLAS_OP_T, 1)                   \
  X(CUBLAS_DIAG_NON_UNIT, 0)
#define MPG_CUBLAS_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_CUBLAS_CONSTANTS(MPG_CUBLAS_CONSTANT_) };

/* Functions in use, as X(result, name, parameters). */
#define MPG_CUBLAS_FUNCTIONS(X)                          \
  X(cublasStatus_t, cublasCreate_v2, (cublasHandle_t *)) \
  X(cublasStatus_t, cublasDestroy_v2, (cublasHandle_t))  \
  X(cublasStatus_t, cublasSetStream_v2, (cublasHandle_t, cudaStream_t))

/* Routines in use, as X(name, parameters) for cublas<S or D><name>. */
#define MPG_CUBLAS_ROUTINES(X, T)                                                                  \
  X(trmm_v2,                                                                                       \
    (cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,      \
     int m, int n, const T *alpha, const T *a, int lda, const T *b, int ldb, T *c, int ldc))       \
  X(trsm_v2, (cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t,               \
              cublasDiagType_t, int m, int n, const T *alpha, const T *a, int lda, T *b, int ldb)) \
  X(getrfBatched,                                                                                  \
    (cublasHandle_t, int n, T *const *a, int lda, int *pivots, int *infos, int count))             \
  X(getriBatched, (cublasHandle_t, int n, const T *const *a, int lda, const int *pivots,           \
                   T *const *c, int ldc, int *infos, int count))                                   \
  X(getrsBatched, (cublasHandle_t, cublasOperation_t, int n, int columns, const T *const *a,       \
                   int lda, const int *pivots, T *const *b, int ldb, int *wrong, int count))

#endif
