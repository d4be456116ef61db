/* Declarations shared by the files of the GPU library: the driver, the core's services, and helpers
 * for CUDA calls. */
#ifndef KERNELS_CUDA_RUNTIME_RUNTIME_H
#define KERNELS_CUDA_RUNTIME_RUNTIME_H

#include <cuda_runtime_api.h>

#include "device/gpu/gpu.h"

extern const mpg_gpu_services *mpg_cuda_services; /* set once, when the library is loaded */
extern const mpg_gpu_driver mpg_cuda_driver;
extern const mpg_gpu_communicators mpg_cuda_communicators; /* vendor/nccl_ranks.c */

/* Sets *card to the CUDA index of an open device's GPU, and *arrived to the event that is recorded
 * after each copy from the host to the device. */
mpg_status mpg_cuda_device_card(mpg_device_id id, int *card, cudaEvent_t *arrived);
/* Writes `count` keys, at most MPG_CAPTURE_KEYS, to `to` in device memory, after the stream's
 * earlier work. In random_keys.cu. */
mpg_status mpg_cuda_write_keys(cudaStream_t stream, const mpg_random_key *keys, int count,
                               mpg_random_key *to);
/* Writes `tick` to `to`, which is mapped host memory, after the stream's earlier work. In
 * ticks.cu. */
mpg_status mpg_cuda_write_tick(cudaStream_t stream, uint64_t *to, uint64_t tick);
/* Raises a kernel's shared-memory limit to `bytes` on the current GPU. Caches the limits that the
 * thread has already set, because the CUDA call takes longer than a launch. */
mpg_status mpg_cuda_allow_shared(const void *kernel, size_t bytes);
/* Determine whether another thread caused the failure of a capture. `watch_failures` is called when
 * a capture begins. `failed_by_itself` returns true if the thread has had an error since then,
 * unless the first one is cudaErrorStreamCaptureInvalidated, which means that another thread
 * invalidated the capture. */
void mpg_cuda_watch_failures(void);
bool mpg_cuda_failed_by_itself(void);
/* Bracket CUDA calls that may run on a user's thread. `enter` makes `card` the thread's current
 * GPU. It stores the previous GPU in *former, or -1 if `card` was already the current one. `leave`
 * restores the previous GPU, because other libraries in the process, such as PyTorch, allocate on
 * the current GPU. */
mpg_status mpg_cuda_enter(int card, int *former);
void mpg_cuda_leave(int former);
/* Converts a CUDA error to a status with the text "cudaX failed: ...". The call's name ends at its
 * first parenthesis. Out of memory becomes MPG_DEVICE_OUT_OF_MEMORY, all other errors MPG_ERROR. */
mpg_status mpg_cuda_check(cudaError_t error, const char *what);
#define MPG_CUDA_TRY(call) MPG_TRY(mpg_cuda_check((call), #call))

#endif
