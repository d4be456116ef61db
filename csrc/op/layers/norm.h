/* Geometry of L2Normalization, for inference and the kernels of all backends. These are plain
 * values, and the functions may be called from any thread.
 */
#ifndef MPG_OP_LAYERS_NORM_H
#define MPG_OP_LAYERS_NORM_H

#include "op/op.h"

enum { MPG_L2_INSTANCE, MPG_L2_CHANNEL, MPG_L2_SPATIAL }; /* values of `mode` */

/* Splits the shape of data into (outer, n, inner); data is normalized along n. */
static inline void mpg_l2_split(int mode, const mpg_shape *data, int64_t *outer, int64_t *n,
                                int64_t *inner) {
  int first = mode == MPG_L2_SPATIAL ? 2 : 1, last = mode == MPG_L2_CHANNEL ? 2 : data->ndim;
  *outer = mpg_shape_product(data, 0, first);
  *n = mpg_shape_product(data, first, last);
  *inner = mpg_shape_product(data, last, data->ndim);
}

#endif
