/* Declarations of the cuSOLVER types, constants and functions in use. They belong to cuSOLVER's
 * stable interface, which is identical in versions 11 (CUDA 12) and 12 (CUDA 13). Matrices are
 * column-major. `info` is in device memory and receives 0 or LAPACK's error code.
 *
 * cuSOLVER is loaded at run time (kernels/cuda/vendor/library.h), not linked, and the build does
 * not need NVIDIA's headers. If MPG_CUSOLVER_REAL is defined, the types come from NVIDIA's header,
 * and tests/hostcuda/check_cusolver.c checks all other declarations against it.
 */
#ifndef KERNELS_CUDA_VENDOR_CUSOLVER_H
#define KERNELS_CUDA_VENDOR_CUSOLVER_H

#ifdef MPG_CUSOLVER_REAL
#define MPG_CUBLAS_REAL
#include <cusolverDn.h>
#else
typedef struct cusolverDnContext *cusolverDnHandle_t;
typedef int cusolverStatus_t, cusolverEigMode_t;
#endif
#include "kernels/cuda/vendor/cublas.h"

#define MPG_CUSOLVER_CONSTANTS(X)     \
  X(CUSOLVER_STATUS_SUCCESS, 0)       \
  X(CUSOLVER_STATUS_ALLOC_FAILED, 2)  \
  X(CUSOLVER_STATUS_INVALID_VALUE, 3) \
  X(CUSOLVER_EIG_MODE_VECTOR, 1)
#define MPG_CUSOLVER_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_CUSOLVER_CONSTANTS(MPG_CUSOLVER_CONSTANT_) };

/* Functions in use, as X(result, name, parameters). */
#define MPG_CUSOLVER_FUNCTIONS(X)                               \
  X(cusolverStatus_t, cusolverDnCreate, (cusolverDnHandle_t *)) \
  X(cusolverStatus_t, cusolverDnDestroy, (cusolverDnHandle_t))  \
  X(cusolverStatus_t, cusolverDnSetStream, (cusolverDnHandle_t, cudaStream_t))

/* Routines in use, as X(name, parameters) for cusolverDn<S or D><name>. */
#define MPG_CUSOLVER_ROUTINES(X, T)                                                                \
  X(potrf_bufferSize, (cusolverDnHandle_t, cublasFillMode_t, int n, T *a, int lda, int *size))     \
  X(potrf,                                                                                         \
    (cusolverDnHandle_t, cublasFillMode_t, int n, T *a, int lda, T *work, int size, int *info))    \
  X(potri_bufferSize, (cusolverDnHandle_t, cublasFillMode_t, int n, T *a, int lda, int *size))     \
  X(potri,                                                                                         \
    (cusolverDnHandle_t, cublasFillMode_t, int n, T *a, int lda, T *work, int size, int *info))    \
  X(geqrf_bufferSize, (cusolverDnHandle_t, int m, int n, T *a, int lda, int *size))                \
  X(geqrf,                                                                                         \
    (cusolverDnHandle_t, int m, int n, T *a, int lda, T *tau, T *work, int size, int *info))       \
  X(orgqr_bufferSize,                                                                              \
    (cusolverDnHandle_t, int m, int n, int k, const T *a, int lda, const T *tau, int *size))       \
  X(orgqr, (cusolverDnHandle_t, int m, int n, int k, T *a, int lda, const T *tau, T *work,         \
            int size, int *info))                                                                  \
  X(syevd_bufferSize, (cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, const T *a, \
                       int lda, const T *values, int *size))                                       \
  X(syevd, (cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, T *a, int lda,         \
            T *values, T *work, int size, int *info))

#endif
