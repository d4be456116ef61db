/* Temporary arrays of a compiler pass. */
#include "base/workspace.h"

typedef struct mpg_workspace_array {
  struct mpg_workspace_array *next;
  _Alignas(16) char items[];
} array;

void *mpg_workspace_take(mpg_workspace *space, size_t count, size_t item_size) {
  size_t bytes;
  bool fits = mpg_size_mul(count, item_size, &bytes) && mpg_size_add(bytes, sizeof(array), &bytes);
  array *taken = fits ? mpg_calloc(1, bytes) : NULL;
  if (!taken) {
    space->refused = fits ? bytes : SIZE_MAX;
    return NULL;
  }
  taken->next = space->arrays;
  space->arrays = taken;
  return taken->items;
}

mpg_status mpg_workspace_check(const mpg_workspace *space) {
  return space->refused ? mpg_out_of_host_memory(space->refused) : MPG_OK;
}

void mpg_workspace_free(mpg_workspace *space) {
  for (array *next; space->arrays; space->arrays = next) {
    next = space->arrays->next;
    mpg_free(space->arrays);
  }
}
