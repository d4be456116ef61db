/* Sizes of a kernel's views (inputs and outputs), shared by all backends. These functions are
 * stateless and may be called from any thread. */
#ifndef KERNELS_COMMON_VIEW_H
#define KERNELS_COMMON_VIEW_H

#include "op/kernel.h"

/* Returns the size of an element in bytes. */
static inline size_t item_of(const mpg_view *view) { return mpg_dtype_size(view->desc.dtype); }
static inline int64_t count_of(const mpg_view *view) { return mpg_shape_size(&view->desc.shape); }
static inline size_t bytes_of(const mpg_view *view) {
  return (size_t)count_of(view) * item_of(view);
}
static inline int axis_of(int64_t axis, int ndim) { return (int)(axis < 0 ? axis + ndim : axis); }

#endif
