/* Checks our declarations of cuBLAS against NVIDIA's header; compiled by
 * tests/gpu/test_gpu_libraries.py, never linked. */
#define MPG_CUBLAS_REAL
#include "kernels/cuda/vendor/cublas.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_CUBLAS_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_CUBLAS_FUNCTIONS(SIGNATURE)

#define SINGLE(name, parameters) cublasStatus_t(*check_S##name) parameters = cublasS##name;
#define DOUBLE(name, parameters) cublasStatus_t(*check_D##name) parameters = cublasD##name;
MPG_CUBLAS_ROUTINES(SINGLE, float)
MPG_CUBLAS_ROUTINES(DOUBLE, double)

cublasStatus_t (*check_property)(libraryPropertyType, int *) = cublasGetProperty;
