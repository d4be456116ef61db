/* Checks our declarations of NCCL against NVIDIA's header; compiled by
 * tests/gpu/test_gpu_libraries.py, never linked. */
#define MPG_NCCL_REAL
#include "kernels/cuda/vendor/nccl.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_NCCL_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_NCCL_FUNCTIONS(SIGNATURE)

_Static_assert(sizeof(ncclUniqueId) == 128, "");
static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
static const mpg_nccl_config ours = MPG_NCCL_CONFIG;
_Static_assert(offsetof(ncclConfig_t, size) == offsetof(mpg_nccl_config, size) &&
                   offsetof(ncclConfig_t, magic) == offsetof(mpg_nccl_config, magic) &&
                   offsetof(ncclConfig_t, version) == offsetof(mpg_nccl_config, version) &&
                   offsetof(ncclConfig_t, blocking) == offsetof(mpg_nccl_config, blocking),
               "");
int check_magic(void) { return initial.magic == ours.magic; }

_Static_assert(NCCL_MAJOR == 2, "the major version that kernels/cuda/vendor/library.c opens");
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
                   sizeof(ncclRedOp_t) == sizeof(int),
               "");
