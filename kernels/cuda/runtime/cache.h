/* Data that kernels keep on a device between calls (device->kernel_cache): handles of libraries,
 * chosen algorithms. One slot an owner. By the device's worker, as kernels are; freed with the
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

/* *contents: the slot's, made by `make` on the first call; where that failed the next call tries
 * again. */
mpg_status mpg_cuda_cached(mpg_device *device, mpg_cuda_slot slot,
                           mpg_status (*make)(void **contents), void (*release)(void *contents),
                           void **contents);

#endif
