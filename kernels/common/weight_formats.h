/* Constants of packed weights that CPU and GPU kernels share (op/math/quantized_weight.h). */
#ifndef KERNELS_COMMON_WEIGHT_FORMATS_H
#define KERNELS_COMMON_WEIGHT_FORMATS_H

#include <stdint.h>

#include "base/host_device.h"

/* The values of NF4: quantiles of the normal distribution, scaled to [-1, 1]. */
#define MPG_NF4_VALUES    \
  {-1.0f,                 \
   -0.6961928009986877f,  \
   -0.5250730514526367f,  \
   -0.39491748809814453f, \
   -0.28444138169288635f, \
   -0.18477343022823334f, \
   -0.09105003625154495f, \
   0.0f,                  \
   0.07958029955625534f,  \
   0.16093020141124725f,  \
   0.24611230194568634f,  \
   0.33791524171829224f,  \
   0.44070982933044434f,  \
   0.5626170039176941f,   \
   0.7229568362236023f,   \
   1.0f}

/* Reads the scale and the minimum of a run of 32 elements in a block of q4_k. Both have 6 bits.
 * Runs 0 to 3 have them in bytes 0 to 7. Runs 4 to 7 have their lower 4 bits in bytes 8 to 11,
 * and their upper 2 bits in the upper bits of bytes 0 to 7. */
MPG_HOST_DEVICE void mpg_q4_k_scales(const uint8_t *bytes, int run, int *scale, int *minimum) {
  if (run < 4) {
    *scale = bytes[run] & 63;
    *minimum = bytes[run + 4] & 63;
  } else {
    *scale = (bytes[run + 4] & 15) | (bytes[run - 4] >> 6) << 4;
    *minimum = bytes[run + 4] >> 4 | (bytes[run] >> 6) << 4;
  }
}

#endif
