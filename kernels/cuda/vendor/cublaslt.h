/* Declarations of the cuBLASLt types, constants and functions in use. They belong to cuBLASLt's
 * stable interface, which is identical in versions 12 and 13.
 *
 * cuBLASLt is loaded at run time (kernels/cuda/vendor/library.h), not linked, and the build does
 * not need NVIDIA's headers. If MPG_CUBLASLT_REAL is defined, the types come from NVIDIA's header,
 * and tests/hostcuda/check_cublaslt.c checks all other declarations against it.
 */
#ifndef KERNELS_CUDA_VENDOR_CUBLASLT_H
#define KERNELS_CUDA_VENDOR_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#ifdef MPG_CUBLASLT_REAL
#include <cublasLt.h>
#else
#include <cuda_runtime_api.h>
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct mpg_cublaslt_desc *cublasLtMatmulDesc_t;
typedef struct mpg_cublaslt_layout *cublasLtMatrixLayout_t;
typedef struct mpg_cublaslt_preference *cublasLtMatmulPreference_t;
typedef int cublasStatus_t, cublasComputeType_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t;
typedef int mpg_cublaslt_type; /* cudaDataType */
typedef struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;
#endif

#define MPG_CUBLASLT_CONSTANTS(X)                   \
  X(CUBLAS_STATUS_SUCCESS, 0)                       \
  X(CUBLAS_STATUS_NOT_INITIALIZED, 1)               \
  X(CUBLAS_STATUS_ALLOC_FAILED, 3)                  \
  X(CUBLAS_STATUS_INVALID_VALUE, 7)                 \
  X(CUBLAS_STATUS_NOT_SUPPORTED, 15)                \
  X(CUDA_R_32F, 0)                                  \
  X(CUDA_R_64F, 1)                                  \
  X(CUDA_R_16F, 2)                                  \
  X(CUDA_R_16BF, 14)                                \
  X(CUBLAS_COMPUTE_32F, 68)                         \
  X(CUBLAS_COMPUTE_64F, 70)                         \
  X(CUBLAS_COMPUTE_32F_FAST_TF32, 77)               \
  X(CUBLAS_OP_N, 0)                                 \
  X(CUBLAS_OP_T, 1)                                 \
  X(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)          \
  X(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6) \
  X(CUBLASLT_MATMUL_DESC_TRANSA, 3)                 \
  X(CUBLASLT_MATMUL_DESC_TRANSB, 4)                 \
  X(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)               \
  X(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)           \
  X(CUBLASLT_EPILOGUE_BIAS, 4)                      \
  X(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)      \
  X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)    \
  X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)  \
  X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)  \
  X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)  \
  X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)  \
  X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)
#define MPG_CUBLASLT_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_CUBLASLT_CONSTANTS(MPG_CUBLASLT_CONSTANT_) };

#ifdef MPG_CUBLASLT_REAL
typedef cudaDataType mpg_cublaslt_type;
#endif

/* Functions in use, as X(result, name, parameters). */
#define MPG_CUBLASLT_FUNCTIONS(X)                                                                \
  X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *))                                        \
  X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t))                                         \
  X(const char *, cublasLtGetStatusName, (cublasStatus_t))                                       \
  X(cublasStatus_t, cublasLtMatmulDescCreate,                                                    \
    (cublasLtMatmulDesc_t *, cublasComputeType_t, mpg_cublaslt_type))                            \
  X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                           \
  X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                              \
    (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                \
  X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                  \
    (cublasLtMatrixLayout_t *, mpg_cublaslt_type, uint64_t, uint64_t, int64_t))                  \
  X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))                       \
  X(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,                                            \
    (cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t))             \
  X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))              \
  X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))               \
  X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                        \
    (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))    \
  X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                              \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,     \
     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,            \
     cublasLtMatmulHeuristicResult_t *, int *))                                                  \
  X(cublasStatus_t, cublasLtMatmul,                                                              \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, \
     const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,   \
     void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

#endif
