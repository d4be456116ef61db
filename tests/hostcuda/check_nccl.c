/* Our declarations of NCCL against NVIDIA's header; compiled by tests/gpu/test_gpu_libraries.py,
 * never linked. */
#define MPG_NCCL_REAL
#include "kernels/cuda/vendor/nccl.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_NCCL_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_NCCL_FUNCTIONS(SIGNATURE)

_Static_assert(NCCL_MAJOR == 2, "the major version that kernels/cuda/vendor/library.c opens");
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
                   sizeof(ncclRedOp_t) == sizeof(int),
               "");
