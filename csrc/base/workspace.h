/* Temporary arrays of a compiler pass. Each array is zeroed and allocated separately; all are freed
 * together. A failed allocation returns NULL. The caller need not check each result, but must call
 * mpg_workspace_check after the last allocation and before it uses any array. Initialize with {0}.
 * Not thread-safe.
 */
#ifndef MPG_BASE_WORKSPACE_H
#define MPG_BASE_WORKSPACE_H

#include "base/memory.h"

typedef struct mpg_workspace {
  struct mpg_workspace_array *arrays; /* owned */
  size_t refused;                     /* size in bytes of a failed allocation; 0 if none failed */
} mpg_workspace;

void *mpg_workspace_take(mpg_workspace *space, size_t count, size_t item_size);
mpg_status mpg_workspace_check(const mpg_workspace *space);
void mpg_workspace_free(mpg_workspace *space);

#endif
