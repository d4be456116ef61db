/* The arrays that one pass works with: zeroed, each an allocation of its own, freed together. An
 * array that could not be had is NULL; one check behind all requests says so. Starts as {0}. Not
 * shared between threads.
 */
#ifndef MPG_BASE_WORKSPACE_H
#define MPG_BASE_WORKSPACE_H

#include "base/memory.h"

typedef struct mpg_workspace {
  struct mpg_workspace_array *arrays; /* owned */
  size_t refused;                     /* bytes of a request that failed; 0: none has */
} mpg_workspace;

void *mpg_workspace_take(mpg_workspace *space, size_t count, size_t item_size);
mpg_status mpg_workspace_check(const mpg_workspace *space);
void mpg_workspace_free(mpg_workspace *space);

#endif
