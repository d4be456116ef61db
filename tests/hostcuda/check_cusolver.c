/* Checks our declarations of cuSOLVER against NVIDIA's header; compiled by
 * tests/gpu/test_gpu_libraries.py, never linked. */
#define MPG_CUSOLVER_REAL
#include "kernels/cuda/vendor/cusolver.h"

#define SAME(name, value) _Static_assert((int)MPG_##name == (int)name, #name);
MPG_CUSOLVER_CONSTANTS(SAME)

#define SIGNATURE(result, name, parameters) result(*check_##name) parameters = name;
MPG_CUSOLVER_FUNCTIONS(SIGNATURE)
MPG_CUSOLVER_GENERAL_FUNCTIONS(SIGNATURE)

#define SINGLE(name, parameters) cusolverStatus_t(*check_S##name) parameters = cusolverDnS##name;
#define DOUBLE(name, parameters) cusolverStatus_t(*check_D##name) parameters = cusolverDnD##name;
MPG_CUSOLVER_ROUTINES(SINGLE, float)
MPG_CUSOLVER_ROUTINES(DOUBLE, double)

cusolverStatus_t (*check_property)(libraryPropertyType, int *) = cusolverGetProperty;
