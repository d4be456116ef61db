/* Test-only: emulates on the host the part of the CUDA runtime that mpgluon uses. See docs/cuda.md.
 *
 * A device is a number, and its memory is host memory. A stream is a thread that runs queued work
 * in order. Kernels are ordinary functions, which run block by block and thread by thread
 * (fibers.h). Constants have CUDA's values if product code can observe them.
 */
#ifndef HOSTCUDA_RUNTIME_API_H
#define HOSTCUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000
#define HOSTCUDA 1
#define HOSTCUDA_SHARED \
  __attribute__((visibility("default"))) /* shared with other stand-in libraries */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorIllegalAddress = 700,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorGraphExecUpdateFailure = 910
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
#define cudaStreamLegacy ((cudaStream_t)0x1)
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUmemPoolHandle_st *cudaMemPool_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUlib_st *cudaLibrary_t;
typedef struct CUkern_st *cudaKernel_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
  enum cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};
typedef enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
} cudaMemcpyKind;
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
typedef enum cudaDeviceAttr cudaDeviceAttr;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

typedef struct CUuuid_st {
  char bytes[16];
} cudaUUID_t;
typedef struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int multiProcessorCount, major, minor;
} cudaDeviceProp;

enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemAccessFlags { cudaMemAccessFlagsProtReadWrite = 3 };
typedef enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 } cudaMemPoolAttr;
typedef struct cudaMemLocation {
  enum cudaMemLocationType type;
  int id;
} cudaMemLocation;
typedef struct cudaMemPoolProps {
  enum cudaMemAllocationType allocType;
  int handleTypes;
  struct cudaMemLocation location;
} cudaMemPoolProps;
typedef struct cudaMemAccessDesc {
  struct cudaMemLocation location;
  enum cudaMemAccessFlags flags;
} cudaMemAccessDesc;
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum { cudaEnableDefault = 0 };

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDriverGetVersion(int *version);
HOSTCUDA_SHARED cudaError_t cudaSetDevice(int device);
HOSTCUDA_SHARED cudaError_t cudaGetDevice(int *device);
HOSTCUDA_SHARED cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
HOSTCUDA_SHARED cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

HOSTCUDA_SHARED cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
typedef void (*cudaHostFn_t)(void *data);
HOSTCUDA_SHARED cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                               void *data);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

/* Load code that NVRTC's stand-in has compiled. */
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, void *, void **, unsigned,
                                void *, void **, unsigned);
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name);

enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
typedef struct cudaGraphExecUpdateResultInfo {
  int result;
} cudaGraphExecUpdateResultInfo;
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

cudaError_t cudaMalloc(void **memory, size_t size);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t size);
cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc *list, size_t count);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);
cudaError_t cudaMallocFromPoolAsync(void **memory, size_t size, cudaMemPool_t pool,
                                    cudaStream_t stream);
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream);
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind);
HOSTCUDA_SHARED cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size,
                                            cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream);
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result);

/* Extensions for tests. hostcuda_break makes all later work on a card fail, as after an illegal
 * memory access. hostcuda_break_after does so after `launches` more kernels have run.
 * hostcuda_count returns a counter: "synchronize" (the host waits for the card), "capture",
 * "instantiate", "update", "graph" (graph launches), "launch" (kernel launches, including captured
 * ones), "attribute" (cudaFuncSetAttribute), "specialised" (launches of NVRTC's kernels), and more
 * in runtime.cpp. */
HOSTCUDA_SHARED void hostcuda_break(int device);
HOSTCUDA_SHARED void hostcuda_break_after(int device, long launches);
HOSTCUDA_SHARED long hostcuda_count(const char *what);
/* Returns the card of a memory range, or -1 if it is not within one allocation. */
HOSTCUDA_SHARED int hostcuda_memory_card(const void *memory, size_t bytes);
HOSTCUDA_SHARED int hostcuda_stream_card(cudaStream_t stream);
/* Returns 1 during a capture of the stream. */
HOSTCUDA_SHARED int hostcuda_captures(cudaStream_t stream);
/* Queues a stand-in library's work in stream order. Calls `function` with a copy of the data each
 * time the work runs, which is more than once if it is captured. */
HOSTCUDA_SHARED cudaError_t hostcuda_put(cudaStream_t stream, void (*function)(const void *data),
                                         const void *data, size_t size);

#ifdef __cplusplus
}
#endif
#endif
