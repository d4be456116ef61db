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
typedef cudaDataType mpg_cusolver_type;
#else
typedef struct cusolverDnContext *cusolverDnHandle_t;
typedef struct cusolverDnParams *cusolverDnParams_t;
typedef int cusolverStatus_t, cusolverEigMode_t;
typedef int mpg_cusolver_type; /* cudaDataType */
#endif
#include "kernels/cuda/vendor/cublas.h"

#define MPG_CUSOLVER_CONSTANTS(X)     \
  X(CUSOLVER_STATUS_SUCCESS, 0)       \
  X(CUSOLVER_STATUS_ALLOC_FAILED, 2)  \
  X(CUSOLVER_STATUS_INVALID_VALUE, 3) \
  X(CUSOLVER_EIG_MODE_NOVECTOR, 0)    \
  X(CUSOLVER_EIG_MODE_VECTOR, 1)      \
  X(CUDA_R_32F, 0)                    \
  X(CUDA_R_64F, 1)
#define MPG_CUSOLVER_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_CUSOLVER_CONSTANTS(MPG_CUSOLVER_CONSTANT_) };

/* Functions in use, as X(result, name, parameters). */
#define MPG_CUSOLVER_FUNCTIONS(X)                               \
  X(cusolverStatus_t, cusolverDnCreate, (cusolverDnHandle_t *)) \
  X(cusolverStatus_t, cusolverDnDestroy, (cusolverDnHandle_t))  \
  X(cusolverStatus_t, cusolverDnSetStream, (cusolverDnHandle_t, cudaStream_t))

/* Functions in use for eigenvalues of general matrices, which cuSOLVER has since CUDA 12.8. If all
 * types are real, `w` has 2 n elements: the real parts and then the imaginary ones. */
#define MPG_CUSOLVER_GENERAL_FUNCTIONS(X)                                                          \
  X(cusolverStatus_t, cusolverDnXgeev,                                                             \
    (cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t left, cusolverEigMode_t right,      \
     int64_t n, mpg_cusolver_type a_type, void *a, int64_t lda, mpg_cusolver_type w_type, void *w, \
     mpg_cusolver_type vl_type, void *vl, int64_t ldvl, mpg_cusolver_type vr_type, void *vr,       \
     int64_t ldvr, mpg_cusolver_type type, void *work, size_t size, void *host, size_t host_size,  \
     int *info))                                                                                   \
  X(cusolverStatus_t, cusolverDnXgeev_bufferSize,                                                  \
    (cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t left, cusolverEigMode_t right,      \
     int64_t n, mpg_cusolver_type a_type, const void *a, int64_t lda, mpg_cusolver_type w_type,    \
     const void *w, mpg_cusolver_type vl_type, const void *vl, int64_t ldvl,                       \
     mpg_cusolver_type vr_type, const void *vr, int64_t ldvr, mpg_cusolver_type type,              \
     size_t *size, size_t *host_size))                                                             \
  X(cusolverStatus_t, cusolverDnCreateParams, (cusolverDnParams_t *))                              \
  X(cusolverStatus_t, cusolverDnDestroyParams, (cusolverDnParams_t))

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
            T *values, T *work, int size, int *info))                                              \
  X(gesvd_bufferSize, (cusolverDnHandle_t, int m, int n, int *size))                               \
  X(gesvd,                                                                                         \
    (cusolverDnHandle_t, signed char u_job, signed char vt_job, int m, int n, T *a, int lda,       \
     T *values, T *u, int ldu, T *vt, int ldvt, T *work, int size, T *rest, int *info))

#endif
