/* Copies between a device and host memory, which is mostly pageable. Data moves chunk by chunk
 * through a ring of pinned memory, so that the card copies one chunk while the host copies the
 * next, and a thread only waits for data that it needs.
 *
 * Ownership: a staging belongs to a device and lives as long as the process. Threads: any for the
 * blocking functions; push and pull run on the thread that issues the stream's work. Without pinned
 * memory, copies fall back to the driver's, which are slower. Page-locked host memory is copied
 * directly. Push and pull then do not wait for it, so it must live until the stream has passed.
 */
#ifndef KERNELS_CUDA_RUNTIME_STAGING_H
#define KERNELS_CUDA_RUNTIME_STAGING_H

#include "kernels/cuda/runtime/runtime.h"

typedef struct mpg_staging mpg_staging;

mpg_status mpg_staging_open(mpg_staging **staging); /* for the current card; new */
/* On return, `host` has the bytes. */
mpg_status mpg_staging_read(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
/* On return, `host` has been read; the bytes are in place once the stream has passed. */
mpg_status mpg_staging_write(mpg_staging *staging, cudaStream_t stream, void *memory,
                             const void *host, size_t size);
/* Both run in stream order. */
mpg_status mpg_staging_push(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
mpg_status mpg_staging_pull(mpg_staging *staging, cudaStream_t stream, void *memory,
                            const void *host, size_t size);

#endif
