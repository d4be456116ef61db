/* Copies between a device and host memory, which is mostly pageable. Data moves chunk by chunk
 * through a ring buffer of pinned memory, so that the GPU copies one chunk while the host copies
 * the next. If pinned memory cannot be allocated, CUDA's own slower copies are used. Page-locked
 * host memory is copied directly.
 *
 * Ownership: a staging object belongs to a device and lives as long as the process. Threads: any
 * thread may call read and write. Push and pull must be called on the thread that issues the
 * stream's work.
 */
#ifndef KERNELS_CUDA_RUNTIME_STAGING_H
#define KERNELS_CUDA_RUNTIME_STAGING_H

#include "kernels/cuda/runtime/runtime.h"

typedef struct mpg_staging mpg_staging;

/* Creates a staging object for the current GPU. */
mpg_status mpg_staging_open(mpg_staging **staging);
/* Copies device memory to the host. On return, the copy is complete. */
mpg_status mpg_staging_read(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
/* Copies host memory to the device. On return, `host` has been read and may be reused. Later work
 * in the stream sees the copied bytes. */
mpg_status mpg_staging_write(mpg_staging *staging, cudaStream_t stream, void *memory,
                             const void *host, size_t size);
/* Copy to the host (push) or to the device (pull) in stream order. `host` must stay valid until the
 * copy is complete, because the stream accesses it after the call returns. The exception is a pull
 * from pageable memory, which the call reads before it returns. */
mpg_status mpg_staging_push(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
mpg_status mpg_staging_pull(mpg_staging *staging, cudaStream_t stream, void *memory,
                            const void *host, size_t size);

#endif
