/* The geometry of convolutions and poolings, worked out once for inference and kernels of any backend. Plain values; any thread.
 */
#ifndef MPG_OP_CONVOLUTION_H
#define MPG_OP_CONVOLUTION_H

#include "op/op.h"

enum { MPG_MAX_SPATIAL = 3 };

/* A window that moves over `in` and is placed at `out` places, per spatial axis. */
typedef struct mpg_window {
  int ndim; /* spatial axes, 1 to 3 */
  int64_t in[MPG_MAX_SPATIAL], out[MPG_MAX_SPATIAL], kernel[MPG_MAX_SPATIAL];
  int64_t stride[MPG_MAX_SPATIAL], dilate[MPG_MAX_SPATIAL], pad[MPG_MAX_SPATIAL];
} mpg_window;

/* A convolution of data (batch, channels, in...) with weight (filters, channels / groups, kernel...). */
typedef struct mpg_convolution {
  int64_t batch, channels, filters, groups;
  mpg_window window;
} mpg_convolution;

/* Element i of an optional tuple; `value` where the tuple is empty or None. */
static inline int64_t mpg_tuple_at(const mpg_tuple *tuple, int i, int64_t value) { return tuple->count > 0 ? tuple->values[i] : value; }

/* The convolution whose data, weight and output have these shapes (all known and fitting: after inference). */
void mpg_convolution_set(mpg_convolution *c, const mpg_shape *data, const mpg_shape *weight, const mpg_shape *out, const mpg_tuple *stride,
                         const mpg_tuple *dilate, const mpg_tuple *pad, int64_t groups);
/* The pad that a deconvolution really has: what it says, or what target_shape asks for. */
void mpg_deconvolution_pads(const mpg_deconvolution_params *p, const mpg_shape *data, const mpg_shape *out, mpg_tuple *pads);
/* The window of a pooling from the data's to the output's shape. */
void mpg_pooling_window(const mpg_pooling_params *p, const mpg_shape *data, const mpg_shape *out, mpg_window *window);

static inline int64_t mpg_window_product(const int64_t *sizes, int ndim) {
  int64_t size = 1;
  for (int i = 0; i < ndim; i++) size *= sizes[i];
  return size;
}

#endif
