/* Checks our declarations of cuDNN against NVIDIA's header; compiled by
 * tests/gpu/test_gpu_libraries.py, never linked. */
#define MPG_CUDNN_REAL
#include "kernels/cuda/vendor/cudnn.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_CUDNN_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_CUDNN_FUNCTIONS(SIGNATURE)

_Static_assert(CUDNN_MAJOR == 9, "the major version that kernels/cuda/vendor/library.c opens");
_Static_assert(sizeof(cudnnStatus_t) == sizeof(int) &&
                   sizeof(cudnnBackendAttributeName_t) == sizeof(int) &&
                   sizeof(cudnnBackendDescriptor_t) == sizeof(void *),
               "");

cudnnStatus_t (*check_property)(libraryPropertyType, int *) = cudnnGetProperty;
