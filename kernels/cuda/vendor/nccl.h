/* Declarations of the NCCL 2 types, constants and functions in use, and the communicators between
 * the GPUs of this process. The communicators between processes are in nccl_ranks.c.
 *
 * NCCL is loaded at run time (kernels/cuda/vendor/library.h), not linked, and the build does not
 * need NVIDIA's headers. If MPG_NCCL_REAL is defined, the types come from NVIDIA's header, and
 * tests/hostcuda/check_nccl.c checks all other declarations against it.
 *
 * A communicator connects an ordered list of GPUs. It is created for their first collective and
 * kept until the process ends. To prevent deadlocks, all GPUs must run collectives in the same
 * order. Hence each GPU has one stream for the collectives of all communicators, and a mutex is
 * held while a collective is issued to its GPUs.
 */
#ifndef KERNELS_CUDA_VENDOR_NCCL_H
#define KERNELS_CUDA_VENDOR_NCCL_H

#include <stddef.h>

#ifdef MPG_NCCL_REAL
#include <nccl.h>
#else
#include <cuda_runtime_api.h>
typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;
typedef struct ncclUniqueId {
  char internal[128];
} ncclUniqueId;
typedef struct ncclConfig ncclConfig_t; /* see mpg_nccl_config */
#endif

/* The first fields of ncclConfig_t as of version 2.14. NCCL reads only `size` bytes. */
typedef struct mpg_nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking;
} mpg_nccl_config;
#define MPG_NCCL_CONFIG {offsetof(mpg_nccl_config, blocking) + sizeof(int), 0xcafebeef, 21400, 0}

#define MPG_NCCL_CONSTANTS(X)  \
  X(ncclSuccess, 0)            \
  X(ncclUnhandledCudaError, 1) \
  X(ncclSystemError, 2)        \
  X(ncclInternalError, 3)      \
  X(ncclInvalidArgument, 4)    \
  X(ncclInvalidUsage, 5)       \
  X(ncclRemoteError, 6)        \
  X(ncclInProgress, 7)         \
  X(ncclInt8, 0)               \
  X(ncclUint8, 1)              \
  X(ncclInt32, 2)              \
  X(ncclInt64, 4)              \
  X(ncclFloat16, 6)            \
  X(ncclFloat32, 7)            \
  X(ncclFloat64, 8)            \
  X(ncclBfloat16, 9)           \
  X(ncclSum, 0)
#define MPG_NCCL_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_NCCL_CONSTANTS(MPG_NCCL_CONSTANT_) };

/* Functions in use, as X(result, name, parameters). */
#define MPG_NCCL_FUNCTIONS(X)                                                                      \
  X(ncclResult_t, ncclCommInitAll, (ncclComm_t *, int, const int *))                               \
  X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *))                                               \
  X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))  \
  X(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                   \
  X(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                     \
  X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                             \
  X(const char *, ncclGetErrorString, (ncclResult_t))                                              \
  X(const char *, ncclGetLastError, (ncclComm_t))                                                  \
  X(ncclResult_t, ncclGroupStart, (void))                                                          \
  X(ncclResult_t, ncclGroupEnd, (void))                                                            \
  X(ncclResult_t, ncclAllReduce,                                                                   \
    (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))         \
  X(ncclResult_t, ncclReduce,                                                                      \
    (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))    \
  X(ncclResult_t, ncclBroadcast,                                                                   \
    (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                 \
  X(ncclResult_t, ncclReduceScatter,                                                               \
    (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))         \
  X(ncclResult_t, ncclAllGather,                                                                   \
    (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                      \
  X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)) \
  X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

#ifndef MPG_NCCL_REAL
#include "kernels/cuda/vendor/library.h"
#include "tensor/dtype.h"

enum { MPG_NCCL_MAX_CARDS = 64 };

typedef struct mpg_nccl_functions {
  MPG_NCCL_FUNCTIONS(MPG_CUDA_FUNCTION)
} mpg_nccl_functions;

/* Members of a communicator. All arrays are indexed by rank. */
typedef struct mpg_nccl_clique {
  int count, cards[MPG_NCCL_MAX_CARDS];
  ncclComm_t comms[MPG_NCCL_MAX_CARDS];
  cudaStream_t streams[MPG_NCCL_MAX_CARDS];
} mpg_nccl_clique;

/* Loads NCCL. Sets *functions unless `functions` is NULL. Threads: any. */
mpg_status mpg_nccl_find(const mpg_nccl_functions **functions);
/* Sets *type to NCCL's type for sums of the dtype. Fails if NCCL cannot sum that dtype. */
mpg_status mpg_nccl_type(mpg_dtype dtype, ncclDataType_t *type);
/* Bracket a collective between the GPUs `cards`, which is part of the work of `stream` on GPU
 * `home`. Between the two calls, the caller issues one NCCL group to the clique's streams. The
 * group runs after earlier work in `stream` and before later work.
 *
 * If `begin` succeeds, the caller must call `end` and pass the status of its own work. `begin`
 * takes a mutex, which `end` releases. Both must be called on the thread that issues the work of
 * `stream`. */
mpg_status mpg_nccl_begin(const int *cards, int count, int home, cudaStream_t stream,
                          const mpg_nccl_functions **functions, mpg_nccl_clique **clique);
mpg_status mpg_nccl_end(mpg_nccl_clique *clique, int home, cudaStream_t stream, mpg_status status);
mpg_status mpg_nccl_failed(const mpg_nccl_functions *functions, const char *what,
                           ncclResult_t result);
/* Reports the error if a collective of the GPU has failed. Returns MPG_OK otherwise. Threads:
 * any. */
mpg_status mpg_nccl_check(int card);
/* Waits for the work of a GPU's communicators and destroys the communicators. Aborts those that
 * have failed. */
void mpg_nccl_close(int card);
#endif

#endif
