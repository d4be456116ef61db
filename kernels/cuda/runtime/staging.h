/* Copies between a device and memory of the host, which is mostly pageable: chunk by chunk through
 * a ring of pinned memory, so that the card copies one chunk while the host copies another, and
 * nobody waits for the card but who needs what it has.
 *
 * Ownership: a staging belongs to a device and lives as long as the process. Threads: any for the
 * blocking ones; push and pull by whoever issues the stream's work. Where no pinned memory can be
 * had, copies are the driver's own, slower. Host memory that is page-locked itself is copied
 * directly; push and pull do not wait for it then, so it must stay until the stream has passed.
 */
#ifndef KERNELS_CUDA_RUNTIME_STAGING_H
#define KERNELS_CUDA_RUNTIME_STAGING_H

#include "kernels/cuda/runtime/runtime.h"

typedef struct mpg_staging mpg_staging;

mpg_status mpg_staging_open(mpg_staging **staging); /* for the card that is set; new */
/* On return `host` has the bytes. */
mpg_status mpg_staging_read(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
/* On return `host` has been read; the bytes are in place when the stream has passed. */
mpg_status mpg_staging_write(mpg_staging *staging, cudaStream_t stream, void *memory,
                             const void *host, size_t size);
/* In the stream's order, both. */
mpg_status mpg_staging_push(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size);
mpg_status mpg_staging_pull(mpg_staging *staging, cudaStream_t stream, void *memory,
                            const void *host, size_t size);

#endif
