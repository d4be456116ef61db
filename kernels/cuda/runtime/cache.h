/* Per-device data that kernels keep between calls (device->kernel_cache): library handles and
 * chosen algorithms. Each owner, such as a library, has one slot. Only the device's worker thread
 * uses the cache, so it needs no lock. It is freed with the device. */
#ifndef KERNELS_CUDA_RUNTIME_CACHE_H
#define KERNELS_CUDA_RUNTIME_CACHE_H

#include "device/device.h"

typedef enum mpg_cuda_slot {
  MPG_CUDA_SLOT_PRODUCTS,
  MPG_CUDA_SLOT_CUDNN,
  MPG_CUDA_SLOT_LINALG,
  MPG_CUDA_SLOTS
} mpg_cuda_slot;

/* Sets *contents to the slot's contents, which the first call creates with `make`. If `make` fails,
 * this call fails, and the next one tries again. `release` frees the contents. */
mpg_status mpg_cuda_cached(mpg_device *device, mpg_cuda_slot slot,
                           mpg_status (*make)(void **contents), void (*release)(void *contents),
                           void **contents);

#endif
