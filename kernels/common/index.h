/* Conversion of floats to integers, and handling of out-of-range indices. These functions are
 * stateless and may be called from any thread. */
#ifndef KERNELS_COMMON_INDEX_H
#define KERNELS_COMMON_INDEX_H

#include <stdint.h>

#include "base/host_device.h"

/* Truncates to int64_t. Out-of-range values saturate; NaN becomes 0. */
MPG_HOST_DEVICE int64_t mpg_whole(double value) {
  if (value >= 0x1p63) return INT64_MAX;
  if (value <= -0x1p63) return INT64_MIN;
  return value == value ? (int64_t)value : 0;
}

MPG_HOST_DEVICE int64_t mpg_index_clip(int64_t index, int64_t size) {
  return index < 0 ? 0 : index >= size ? size - 1 : index;
}
MPG_HOST_DEVICE int64_t mpg_index_wrap(int64_t index, int64_t size) {
  int64_t rest = index % size;
  return rest < 0 ? rest + size : rest;
}

#endif
