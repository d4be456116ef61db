/* Data that kernels keep on a device between calls (device->kernel_cache): library handles and
 * chosen algorithms. One slot per owner. Used on the device's worker, like kernels; freed with the
 * device. */
#ifndef KERNELS_CUDA_RUNTIME_CACHE_H
#define KERNELS_CUDA_RUNTIME_CACHE_H

#include "device/device.h"

typedef enum mpg_cuda_slot {
  MPG_CUDA_SLOT_PRODUCTS,
  MPG_CUDA_SLOT_CUDNN,
  MPG_CUDA_SLOT_LINALG,
  MPG_CUDA_SLOTS
} mpg_cuda_slot;

/* Returns the slot's contents, created by `make` on the first call. If `make` fails, the next call
 * retries. */
mpg_status mpg_cuda_cached(mpg_device *device, mpg_cuda_slot slot,
                           mpg_status (*make)(void **contents), void (*release)(void *contents),
                           void **contents);

#endif
