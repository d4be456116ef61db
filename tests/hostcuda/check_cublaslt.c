/* Checks our declarations of cuBLASLt against NVIDIA's header; compiled by
 * tests/gpu/test_gpu_libraries.py, never linked. */
#define MPG_CUBLASLT_REAL
#include "kernels/cuda/vendor/cublaslt.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_CUBLASLT_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_CUBLASLT_FUNCTIONS(SIGNATURE)

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 &&
                   sizeof(cublasLtMatmulHeuristicResult_t) == 64 + 8 + 4 + 4 + 16,
               "");
_Static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64 &&
                   offsetof(cublasLtMatmulHeuristicResult_t, state) == 72,
               "");
_Static_assert(sizeof(cublasStatus_t) == sizeof(int) &&
                   sizeof(cublasComputeType_t) == sizeof(int) &&
                   sizeof(cudaDataType) == sizeof(int),
               "");

cublasStatus_t (*check_property)(libraryPropertyType, int *) = cublasLtGetProperty;
