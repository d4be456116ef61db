/* Pinned memory: host memory that is page-locked if the machine has a usable GPU, so that GPUs copy
 * to and from it directly and asynchronously. It is ordinary memory that the driver has locked, so
 * a forked child can use its own copy. Locking is slow, so released blocks are cached, up to the
 * peak number of bytes in use.
 *
 * Ownership: a block belongs to the caller until it is released. Threads: callers hold the host
 * lock.
 */
#ifndef MPG_DEVICE_GPU_PINNED_H
#define MPG_DEVICE_GPU_PINNED_H

#include <stddef.h>

#include "base/status.h"

typedef struct mpg_pinned mpg_pinned;

/* Allocates at least `size` bytes, aligned to a page. */
mpg_status mpg_pinned_allocate(size_t size, mpg_pinned **block);
void *mpg_pinned_memory(const mpg_pinned *block);
void mpg_pinned_release(void *block);
void mpg_pinned_trim(void); /* returns cached blocks to the system */

#endif
