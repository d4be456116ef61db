/* Pinned memory: memory of the host that is page-locked where there is a GPU, so that cards copy
 * to and from it directly, while the host goes on. It is ordinary memory that the driver has
 * locked, so that a forked child has it, too. Locking takes long: blocks that are given back are
 * kept, at most as many bytes as were ever in use.
 *
 * Ownership: a block belongs to the caller until it is released. Threads: host lock.
 */
#ifndef MPG_DEVICE_GPU_PINNED_H
#define MPG_DEVICE_GPU_PINNED_H

#include <stddef.h>

#include "base/status.h"

typedef struct mpg_pinned mpg_pinned;

/* At least `size` bytes, at the start of a page. */
mpg_status mpg_pinned_allocate(size_t size, mpg_pinned **block);
void *mpg_pinned_memory(const mpg_pinned *block);
void mpg_pinned_release(void *block);
void mpg_pinned_trim(void); /* gives kept blocks back to the system */

#endif
