/* Declarations that the kernels of mixtures of experts share. The functions are stateless, and any
 * thread may call them. */
#ifndef MPG_OP_LAYERS_EXPERTS_H
#define MPG_OP_LAYERS_EXPERTS_H

#include <math.h>

#include "base/host_device.h"
#include "op/params.h"

enum { MPG_ROUTER_SOFTMAX, MPG_ROUTER_SIGMOID }; /* the parameter `router` of route */

/* Returns the maximum number of rows of an expert. */
static inline int64_t mpg_route_limit(const mpg_route_params *p, int64_t tokens, int64_t experts) {
  int64_t rows = tokens * p->k;
  double limit = ceil(p->capacity * (double)rows / (double)experts);
  return p->capacity == 0 || limit > (double)rows ? rows : (int64_t)limit;
}

/* Clips an index to [0, count), because callers may pass any values as `order` and `experts`. */
MPG_HOST_DEVICE int64_t mpg_clip_row(int64_t index, int64_t count) {
  return index < 0 ? 0 : index < count ? index : count - 1;
}

#endif
