/* Implements the per-device cache of data that kernels keep between calls. */
#include "kernels/cuda/runtime/cache.h"

#include "base/memory.h"
#include "kernels/cuda/runtime/runtime.h"

typedef struct cache {
  void *contents[MPG_CUDA_SLOTS];
  void (*release[MPG_CUDA_SLOTS])(void *contents);
} cache;

static void free_cache(void *opaque) {
  cache *c = opaque;
  for (int i = 0; i < MPG_CUDA_SLOTS; i++)
    if (c->contents[i]) c->release[i](c->contents[i]);
  mpg_free(c);
}

mpg_status mpg_cuda_cached(mpg_device *device, mpg_cuda_slot slot,
                           mpg_status (*make)(void **contents), void (*release)(void *contents),
                           void **contents) {
  cache *c = device->kernel_cache;
  if (!c) {
    if (!(c = mpg_calloc(1, sizeof *c))) return mpg_out_of_host_memory(sizeof *c);
    device->kernel_cache = c;
    device->kernel_cache_free = free_cache;
  }
  if (!c->contents[slot]) {
    mpg_status status = make(&c->contents[slot]);
    int card;
    if (status == MPG_DEVICE_OUT_OF_MEMORY && cudaGetDevice(&card) == cudaSuccess) {
      mpg_cuda_services->make_room(card);
      status = make(&c->contents[slot]);
    }
    MPG_TRY(status);
    c->release[slot] = release;
  }
  *contents = c->contents[slot];
  return MPG_OK;
}
