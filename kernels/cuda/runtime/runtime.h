/* Declarations shared by the C files of the GPU library: the driver's state and the core's
 * services. */
#ifndef KERNELS_CUDA_RUNTIME_RUNTIME_H
#define KERNELS_CUDA_RUNTIME_RUNTIME_H

#include <cuda_runtime_api.h>

#include "device/gpu/gpu.h"

extern const mpg_gpu_services *mpg_cuda_services; /* set once, when the library is loaded */
extern const mpg_gpu_driver mpg_cuda_driver;
extern const mpg_gpu_communicators mpg_cuda_communicators; /* vendor/nccl_ranks.c */

/* Returns the card of an open device, and the event after the latest copy from the host to it. */
mpg_status mpg_cuda_device_card(mpg_device_id id, int *card, cudaEvent_t *arrived);
/* Writes `count` keys, at most MPG_CAPTURE_KEYS, to `to` in device memory, after earlier work of
 * `stream`. In random_keys.cu. */
mpg_status mpg_cuda_write_keys(cudaStream_t stream, const mpg_random_key *keys, int count,
                               mpg_random_key *to);
/* Writes `tick` to `to`, host memory that the card can access, after earlier work of `stream`. In
 * ticks.cu. */
mpg_status mpg_cuda_write_tick(cudaStream_t stream, uint64_t *to, uint64_t tick);
/* Raises a kernel's shared-memory limit to `bytes` on the current card. Cached, since the CUDA call
 * takes longer than a launch. */
mpg_status mpg_cuda_allow_shared(const void *kernel, size_t bytes);
/* If another thread has invalidated a capture, the first error is
 * cudaErrorStreamCaptureInvalidated. `mpg_cuda_failed_by_itself` is true if the thread's first
 * error since `mpg_cuda_watch_failures` was a different one. */
void mpg_cuda_watch_failures(void);
bool mpg_cuda_failed_by_itself(void);
/* Calls for a card from any thread, even a user's thread: `enter` makes the card the
 * thread's current one and stores the former one in *former, or -1 if it is the same; `leave` puts
 * the former one back. Other libraries of the process, such as PyTorch, allocate on the thread's
 * current card. */
mpg_status mpg_cuda_enter(int card, int *former);
void mpg_cuda_leave(int former);
/* MPG_OK, or MPG_ERROR with "<what> failed: <CUDA's text>". */
mpg_status mpg_cuda_check(cudaError_t error, const char *what);
#define MPG_CUDA_TRY(call) MPG_TRY(mpg_cuda_check((call), #call))

#endif
